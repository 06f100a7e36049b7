"""The readers of prototrain against tf.data written by hand, for each format; and how long a training waits for them.

    python -m benchmarks.input
    python -m benchmarks.input --formats csv images --rounds 7 --output results

For each format the same examples are read in batches of 128, in turns: by the reader behind a `shuffle` of 1,024
examples, by the reader with `shuffle="index"`, which is a better order, and by hand behind the same `shuffle`, in the
quickest way that was found: lines and records are parsed by the batch. Shown are batches per second, as medians, and
ratios, each the median over the rounds; and the seconds to the first batch, of a first run and of a second one. Then a
network is trained on the data shuffled by index with each op of TensorFlow on one core, so that another one is free to
read, and what it waits for input is shown as a share of the time of its steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from tabulate import tabulate

from prototrain.system.quiet import import_tensorflow

import_tensorflow()

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from prototrain import Callback, Config, SimpleTrainer, readers  # noqa: E402

BATCH, BUFFER, SIZE, WIDTH = 128, 1024, (48, 48), 64
FEATURES: readers.Features = {"x": ("float32", [WIDTH]), "y": ("int64", [])}
COLUMNS = {"x": [f"x{number}" for number in range(WIDTH)]}
FORMATS = ("json lines", "tfrecord", "images", "csv", "parquet")
PARALLEL: Any = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}

Make = Callable[[], tf.data.Dataset]


def write_files(home: Path, examples: int, formats: list[str]) -> None:
    """The same examples in each format; of images a twentieth."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(examples, WIDTH)).round(3).astype(np.float32)
    y = generator.integers(0, 10, examples)
    rows = list(zip(x.tolist(), y.tolist(), strict=True))
    if "json lines" in formats:
        (home / "a.jsonl").write_bytes(b"".join(orjson.dumps({"x": one, "y": label}) + b"\n" for one, label in rows))
    if "csv" in formats:
        lines = [",".join([*COLUMNS["x"], "y"]), *(",".join(map(str, [*one, label])) for one, label in rows)]
        (home / "a.csv").write_text("\n".join(lines))
    for number in range(4) if "tfrecord" in formats else ():
        with tf.io.TFRecordWriter(str(home / f"{number}.tfrecord")) as writer:
            for one, label in rows[number::4]:
                of = {
                    "x": tf.train.Feature(float_list=tf.train.FloatList(value=one)),
                    "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=of)).SerializeToString())
    if "parquet" in formats:
        import pyarrow
        from pyarrow import parquet

        table = pyarrow.table({"x": pyarrow.array(list(x), pyarrow.list_(pyarrow.float32())), "y": y})
        parquet.write_table(table, home / "a.parquet", row_group_size=4096)
    for number in range(examples // 20) if "images" in formats else ():
        folder = home / "images" / str(number % 10)
        folder.mkdir(parents=True, exist_ok=True)
        picture = generator.integers(0, 256, (64, 64, 3), np.uint8)
        (folder / f"{number}.jpg").write_bytes(tf.io.encode_jpeg(picture).numpy())


def ours(home: Path, name: str, shuffle: Any) -> tf.data.Dataset:
    """Batches by a reader."""
    if name == "images":
        # Names are shuffled, as by hand.
        found = readers.image_folder(home / "images", size=SIZE, shuffle=shuffle or True)
    elif name == "tfrecord":
        features = {"x": ("float32", [WIDTH]), "y": ("int64", [])}
        found = readers.tfrecords(home / "*.tfrecord", features=features, shuffle=shuffle)
    elif name == "csv":
        found = readers.csv(home / "a.csv", features=FEATURES, columns=COLUMNS, shuffle=shuffle)
    elif name == "parquet":
        found = readers.parquet(home / "a.parquet", features=FEATURES, shuffle=shuffle)
    else:
        found = readers.json_lines(home / "a.jsonl", features=FEATURES, shuffle=shuffle)
    found = found if shuffle or name == "images" else found.shuffle(BUFFER)
    return found.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def _fixed(x: Any, y: Any) -> dict[str, tf.Tensor]:
    return {"x": tf.ensure_shape(x, [BATCH, WIDTH]), "y": tf.ensure_shape(y, [BATCH])}


def _json_by_hand(home: Path) -> tf.data.Dataset:
    def parse(lines: Any) -> Any:
        items = [orjson.loads(line) for line in lines]
        return np.array([item["x"] for item in items], np.float32), np.array([item["y"] for item in items], np.int64)

    lines = tf.data.TextLineDataset(str(home / "a.jsonl")).shuffle(BUFFER).batch(BATCH, drop_remainder=True)
    parsed = lines.map(lambda some: _fixed(*tf.numpy_function(parse, [some], [tf.float32, tf.int64])), **PARALLEL)
    return parsed.prefetch(tf.data.AUTOTUNE)


def _records_by_hand(home: Path) -> tf.data.Dataset:
    files = tf.data.Dataset.from_tensor_slices(sorted(map(str, home.glob("*.tfrecord"))))
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=4, **PARALLEL)
    features = {"x": tf.io.FixedLenFeature([WIDTH], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}
    batches = records.shuffle(BUFFER).batch(BATCH, drop_remainder=True)
    return batches.map(lambda some: tf.io.parse_example(some, features), **PARALLEL).prefetch(tf.data.AUTOTUNE)


def _images_by_hand(home: Path) -> tf.data.Dataset:
    files = sorted(map(str, home.glob("images/*/*.jpg")))
    labels = [int(Path(file).parent.name) for file in files]

    def decode(file: tf.Tensor, label: tf.Tensor) -> dict[str, tf.Tensor]:
        image = tf.io.decode_jpeg(tf.io.read_file(file), channels=3)
        return {"image": tf.image.resize(image, SIZE, antialias=True) / 255.0, "label": label}

    listed = tf.data.Dataset.from_tensor_slices((files, labels)).shuffle(len(files))
    return listed.map(decode, **PARALLEL).batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def _csv_by_hand(home: Path) -> tf.data.Dataset:
    def parse(lines: tf.Tensor) -> dict[str, tf.Tensor]:
        *x, y = tf.io.decode_csv(lines, [[0.0]] * WIDTH + [tf.zeros([1], tf.int64)])
        return {"x": tf.stack(x, 1), "y": y}

    lines = tf.data.TextLineDataset(str(home / "a.csv")).skip(1).shuffle(BUFFER).batch(BATCH, drop_remainder=True)
    return lines.map(parse, **PARALLEL).prefetch(tf.data.AUTOTUNE)


def _parquet_by_hand(home: Path) -> tf.data.Dataset:
    from pyarrow.parquet import ParquetFile

    def batches() -> Iterator[Any]:
        for some in ParquetFile(home / "a.parquet").iter_batches(4096):
            x = some.column("x").flatten().to_numpy().reshape(-1, WIDTH)
            yield {"x": x, "y": some.column("y").to_numpy()}

    spec = {"x": tf.TensorSpec([None, WIDTH], tf.float32), "y": tf.TensorSpec([None], tf.int64)}
    rows = tf.data.Dataset.from_generator(batches, output_signature=spec).prefetch(2).unbatch()
    return rows.shuffle(BUFFER).batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


BY_HAND: dict[str, Callable[[Path], tf.data.Dataset]] = {
    "json lines": _json_by_hand,
    "tfrecord": _records_by_hand,
    "images": _images_by_hand,
    "csv": _csv_by_hand,
    "parquet": _parquet_by_hand,
}


def rate(dataset: tf.data.Dataset, seconds: float) -> float:
    """Batches per second, behind the first ones."""
    iterator = iter(dataset.repeat())
    for _ in range(3):
        next(iterator)
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        next(iterator)
        count += 1
    return count / (time.perf_counter() - begin)


def first_batch(make: Make) -> float:
    """Seconds from nothing to the first batch."""
    begin = time.perf_counter()
    next(iter(make()))
    return time.perf_counter() - begin


class Net:
    """A network whose step takes some milliseconds.

    Args:
        make: its training data.
    """

    def __init__(self, make: Make) -> None:
        self.config = Config(
            {
                "trainer.experiment_name": "input",
                "model.batch_size": BATCH,
                "model.num_steps": 1,
                "model.optimizer.method": "sgd",
                "model.lr_schedule.method": "constant",
                "model.lr_schedule.constant.value": 0.01,
            }
        )
        self._make = make

    def datasets(self) -> dict[str, tf.data.Dataset]:
        """The training data."""
        return {"trn": self._make()}

    def build(self, inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
        """Layers that are wide enough."""
        x = inputs["x"] if "x" in inputs else keras.layers.Flatten()(inputs["image"])[:, : 8 * WIDTH]
        for number in range(4):
            x = keras.layers.Dense(1024, activation="relu", name=f"fc{number}")(x)
        labels = inputs["y"] if "y" in inputs else inputs["label"]
        loss = keras.losses.sparse_categorical_crossentropy(labels, keras.layers.Dense(10)(x), from_logits=True)
        return {"loss": tf.reduce_mean(loss)}


class Times(Callback):
    """Notes what the steps have taken so far, and their waiting for input."""

    def __init__(self) -> None:
        self.noted: list[tuple[float, float]] = []

    def trigger(self) -> None:
        """Note it."""
        self.noted.append((self.trainer.times.steps, self.trainer.times.input))


def waiting(make: Make, steps: int) -> tuple[float, float]:
    """Milliseconds of a step, and the share of it that a training waits for input, behind its first steps."""
    trainer, times = SimpleTrainer(Net(make)), Times()
    trainer.log = lambda text: None  # type: ignore[method-assign]
    trainer.train([times.every(steps=20)], max_steps=20 + steps)
    taken, waited = (now - then for now, then in zip(times.noted[-1], times.noted[0], strict=True))
    return 1000 * taken / steps, waited / taken


def measure(home: Path, name: str, rounds: int, seconds: float, steps: int) -> dict[str, Any]:
    """One format: rates in turns, times to the first batch, the share of waiting."""
    makes: dict[str, Make] = {
        "reader": partial(ours, home, name, None),
        "index": partial(ours, home, name, "index"),
        "by hand": partial(BY_HAND[name], home),
    }
    first = {kind: [first_batch(make), first_batch(make)] for kind, make in makes.items()}
    rates: dict[str, list[float]] = {kind: [] for kind in makes}
    kinds = list(makes)
    made = {kind: make() for kind, make in makes.items()}
    for number in range(rounds):
        for kind in kinds[number % 3 :] + kinds[: number % 3]:
            rates[kind].append(rate(made[kind], seconds))
    step, share = waiting(makes["index"], steps)
    return {"rates": rates, "first": first, "step ms": step, "waiting": share}


def _ratio(found: dict[str, Any], kind: str) -> float:
    pairs = zip(found["rates"][kind], found["rates"]["by hand"], strict=True)
    return statistics.median(one / other for one, other in pairs)


def table(results: dict[str, Any]) -> str:
    """What was measured, for people."""
    rows = [
        [
            name,
            *(f"{statistics.median(found['rates'][kind]):,.0f}" for kind in ("by hand", "reader", "index")),
            *(f"{_ratio(found, kind):.2f}" for kind in ("reader", "index")),
            *(f"{one:.2f} / {two:.2f}" for one, two in found["first"].values()),
            f"{found['waiting']:.1%} of {found['step ms']:.1f} ms",
        ]
        for name, found in results.items()
    ]
    rates = ["by hand, batches/s", "reader", "by index", "reader, ratio", "by index, ratio"]
    first = ["first batch: reader, s", "by index, s", "by hand, s"]
    return tabulate(rows, ["format", *rates, *first, "waiting, by index"])


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.input", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--steps", type=int, default=100, help="of the training")
    parser.add_argument("--output", type=Path, help="a directory for input.json")
    options = parser.parse_args(arguments)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    results = {}
    with tempfile.TemporaryDirectory() as directory:
        os.environ["PROTOTRAIN_CACHE"] = f"{directory}/cache"
        write_files(Path(directory), options.examples, options.formats)
        for name in options.formats:
            results[name] = measure(Path(directory), name, options.rounds, options.seconds, options.steps)
    print(table(results))
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "input.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
