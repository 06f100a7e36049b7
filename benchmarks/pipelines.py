"""A grammar of tf.data pipelines, whose words are code.

Each rule is a template with the numbers that it may hold; the elements of a pipeline are whole numbers, so that any
stage can follow any other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

Choose = Callable[[Sequence[Any]], Any]

SOURCES = (
    "D.range({size})",
    "D.from_tensor_slices(np.arange({size}))",
    "D.range({size}).enumerate().map(lambda i, x: i + x)",
    "tf.data.experimental.from_list(list(np.arange({size})))",
    "lines(files[:{few}])",
    "D.from_tensor_slices(files).shuffle(9{seed}).interleave(lines, cycle_length={few})",
    "D.from_tensor_slices(files).interleave(lines, cycle_length={few}, num_parallel_calls=2)",
    "D.list_files(files{seed}).flat_map(lines)",
    "D.from_generator(lambda: iter(range({size})), output_signature=number)",
    "D.from_generator(shuffled, output_signature=number)",
    "D.from_generator(anything, output_signature=number)",
    "D.random(seed={few}).take({size}).map(lambda x: x % 100)",
    "D.random(seed={few}, rerandomize_each_iteration=True).take({size}).map(lambda x: x % 100)",
    "records(record_files[:{few}])",
    "D.from_tensor_slices(record_files).interleave(records, cycle_length={few})",
    "D.list_files(record_files{seed}).interleave(records, cycle_length={few}, num_parallel_calls={parallel})",
    "D.list_files(record_files{seed}).flat_map(records)",
    "tf.data.experimental.CsvDataset(csv_files[:{few}], [tf.int64]).map(lambda x: x)",
    "D.list_files(csv_files{seed}).flat_map(lambda f: tf.data.experimental.CsvDataset(f, [tf.int64])).map(lambda x: x)",
    "fixed(fixed_files[:{few}])",
    "D.from_tensor_slices(fixed_files).shuffle(9{seed}).interleave(fixed, cycle_length={few})",
    "D.from_tensor_slices(tf.sparse.eye({size})).map(lambda x: tf.cast(tf.sparse.reduce_sum(x), tf.int64))",
    "D.range(8).apply(tf.data.experimental.assert_cardinality(8))",
    "D.load(saved)",
    "D.load(saved, reader_func=lambda shards: shards.flat_map(lambda shard: shard))",
    "D.load(saved, reader_func=lambda shards: shards.interleave(lambda shard: shard, cycle_length={few}))",
    "D.load(saved, reader_func=lambda shards: shards.shuffle(4{seed}).flat_map(lambda shard: shard.shuffle(3{seed})))",
    "csv(table_files[:{few}], {few}, shuffle_buffer_size={buffer}{shuffle_seed}, num_epochs={few})",
    "csv(table_files, {few}, shuffle=False, num_epochs=1, num_parallel_reads={few})",
    "csv(table_files, {few}, shuffle_buffer_size={buffer}{shuffle_seed})",
    "csv(table_files, {few}, num_epochs=1, num_parallel_reads=3, sloppy=True)",
    "examples(example_files[:{few}], {few}, shuffle_buffer_size={buffer}{shuffle_seed}, num_epochs=1)",
    "D.list_files(csv_files{seed}).interleave(lambda f: tf.data.experimental.CsvDataset(f, [tf.int64])"
    ".map(lambda x: x), cycle_length={few}, num_parallel_calls={parallel})",
)
STAGES = (
    ".shuffle({buffer}{seed})",
    ".shuffle({buffer}{seed})",
    ".shuffle({buffer}{seed}, reshuffle_each_iteration=False)",
    ".repeat(2)",
    ".repeat()",
    ".take({size})",
    ".take({size}).repeat(2)",
    ".repeat().map(lambda x: x + 1).take({size})",
    ".skip({few})",
    ".shard(2, {bit})",
    ".filter(lambda x: x % 3 > 0)",
    ".map(lambda x: x + 1)",
    ".map(lambda x: x + 1, num_parallel_calls={parallel})",
    ".map(lambda x: x + 1, num_parallel_calls=2, deterministic=False)",
    ".map(lambda x: x * 10 + tf.random.uniform([], 0, 9, tf.int64))",
    ".map(lambda x: x * 10 + tf.random.uniform([], 0, 9, tf.int64), num_parallel_calls=2)",
    ".map(lambda x: x + tf.random.stateless_uniform([], [x, 1], 0, 9, tf.int64))",
    ".map(lambda x: tf.py_function(lambda y: y + 1, [x], tf.int64)).map(lambda x: tf.ensure_shape(x, []))",
    ".map(lambda x: x + table.lookup(x))",
    ".map(lambda x: tf.cond(x > 3, lambda: x, lambda: -x))",
    ".cache()",
    ".cache(new_file())",
    ".prefetch({few})",
    ".batch({few}).unbatch()",
    ".batch({few}, drop_remainder=True).unbatch()",
    ".batch({few}, num_parallel_calls=2).unbatch()",
    ".padded_batch({few}).unbatch()",
    ".batch({size}).rebatch({few}).unbatch()",
    ".flat_map(lambda x: D.range(x % 4))",
    ".flat_map(lambda x: D.range(4).shuffle(4{seed}))",
    ".interleave(lambda x: D.range(x, x + 3), cycle_length={few})",
    ".interleave(lambda x: D.range(3).map(lambda y: x + y), cycle_length={few}, block_length={few})",
    ".interleave(lambda x: D.range(x, x + 3), cycle_length={few}, num_parallel_calls={parallel})",
    ".interleave(lambda x: D.range(x, x + 3), cycle_length=2, num_parallel_calls=2, deterministic=False)",
    ".interleave(lambda x: D.range(3).cache(), cycle_length={few})",
    ".enumerate().map(lambda i, x: i * 100 + x)",
    ".scan(tf.constant(0, tf.int64), lambda s, x: (s + x, s + x))",
    ".take_while(lambda x: x < 7)",
    ".unique()",
    ".window({few}).flat_map(lambda d: d.batch(9)).unbatch()",
    ".group_by_window(lambda x: x % 2, lambda key, d: d.batch({few}), window_size={few}).unbatch()",
    ".ignore_errors()",
    ".rejection_resample(lambda x: tf.cast(x % 2, tf.int32), [0.5, 0.5]{seed}).map(lambda c, x: x)",
    ".rejection_resample(lambda x: tf.cast(x % 2, tf.int32), [0.8, 0.2], [0.5, 0.5]{seed}).map(lambda c, x: x)",
    ".map(lambda x: tf.fill([3], x)).sparse_batch({few}, [3]).map(lambda x: tf.sparse.reduce_max(x, 1)).unbatch()"
    ".map(lambda x: tf.ensure_shape(x, []))",
    ".apply(tf.data.experimental.map_and_batch(lambda x: x + 1, {few}, num_parallel_calls={few})).unbatch()",
    ".apply(tf.data.experimental.group_by_reducer(lambda x: x % {few}, reducer))",
    ".map(lambda x: D.range(x % 4).reduce(x, lambda y, z: y + z))",
    ".flat_map(lambda x: D.range(9).shard(2, x % 2).take_while(lambda y: y < 7))",
    ".flat_map(lambda x: D.range(4).scan(x, lambda y, z: (y + z, y + z)))",
    ".flat_map(lambda x: D.random(seed={few}).take(2).map(lambda y: (x + y) % 100))",
    ".interleave(lambda x: D.range(4).interleave(lambda y: D.range(2), num_parallel_calls=2), cycle_length={few})",
    ".flat_map(lambda x: D.from_tensors(x).repeat(2))",
    ".flat_map(lambda x: D.from_tensor_slices([x, x + 1]).batch(1).unbatch())",
    ".flat_map(lambda x: D.zip(D.range(3), D.range(x, x + 9)).map(lambda y, z: y + z))",
    ".flat_map(lambda x: D.range(2).concatenate(D.range(x % 3)).filter(lambda y: y < 2).take(2))",
    ".interleave(lambda x: D.range(x, x + 4).skip(1).prefetch(1), cycle_length={few})",
    ".interleave(lambda x: D.range(x, x + 4).flat_map(lambda y: D.range(y % 3)), cycle_length={few})",
    ".map(lambda x: tf.debugging.check_numerics(tf.cast(x, tf.float32), 'x')).map(lambda x: tf.cast(x, tf.int64))",
    ".map(lambda x: tf.while_loop(lambda y: y < 9, lambda y: [y + 4], [x])[0])",
    ".map(lambda x: x + tf.random.shuffle(tf.range(5, dtype=tf.int64))[0])",
    ".with_options(options(deterministic=True))",
    ".with_options(options(deterministic=False))",
    ".with_options(options(threads={few}))",
    ".with_options(options(optimization='{optimization}'))",
    ".with_options(options(symbolic=True))",
)
PAIRS = (
    "{one}.concatenate({other})",
    "D.zip({one}, {other}).map(lambda x, y: x * 100 + y)",
    "D.sample_from_datasets([{one}, {other}], weights=[0.4, 0.6]{seed})",
    "D.choose_from_datasets([{one}, {other}], D.range(2).repeat({size}))",
    "D.choose_from_datasets([{one}, {other}], D.range(2).repeat({size}), stop_on_empty_dataset=False)",
    "D.choose_from_datasets([{one}, {other}], {choices}.map(lambda x: x % 2))",
)
TWICE = (  # stages that read one dataset in two places
    "(lambda d: D.zip(d, d).map(lambda x, y: x * 100 + y))({one})",
    "(lambda d: d.concatenate(d.map(lambda x: x + 1)))({one})",
    "(lambda d: D.zip(d.repeat(), d.prefetch({few}).repeat({few})).map(lambda x, y: x * 100 + y))({one})",
    "(lambda d: D.zip(d.batch(2).unbatch().repeat(2), d.shuffle(3{seed}).repeat()).map(lambda x, y: x + y))({one})",
)
BATCHES = (
    ".batch({few})",
    ".batch({few})",
    ".batch({few}, drop_remainder=True)",
    ".batch({few}, num_parallel_calls=2)",
    ".padded_batch({few})",
    ".ragged_batch({few})",
)
AFTER = ("", "", ".prefetch(tf.data.AUTOTUNE)", ".shuffle({buffer}{seed})", ".repeat(2)", ".cache()", ".repeat()")
HOLES: dict[str, tuple[Any, ...]] = {
    "choices": (  # first, since they have holes of their own
        "D.range(8).shuffle(8{seed})",
        "D.range(4).shuffle(4{seed}).repeat(3)",
        "D.range(2).shuffle(2{seed}).repeat(9).map(lambda x: x + 1).shuffle(3{seed})",
        "D.random(seed={few})",
        "D.random(seed={few}, rerandomize_each_iteration=True).take(9)",
        "D.range(9).map(lambda x: tf.random.uniform([], 0, 9, tf.int64))",
        "D.from_generator(shuffled, output_signature=number)",
        "D.from_generator(anything, output_signature=number)",
        "D.range(9).interleave(lambda x: D.range(3), cycle_length=2).cache()",
    ),
    "size": (3, 5, 8, 12),
    "few": (1, 2, 3, 4),
    "bit": (0, 1),
    "buffer": (2, 3, 8, 100),
    "parallel": (2, 3, "tf.data.AUTOTUNE"),
    "shuffle_seed": ("", ", shuffle_seed=1", ", shuffle_seed=2"),
    "seed": ("", ", seed=1", ", seed=2"),
    "optimization": (
        "map_fusion",
        "map_and_batch_fusion",
        "filter_fusion",
        "filter_parallelization",
        "parallel_batch",
        "shuffle_and_repeat_fusion",
        "map_parallelization",
        "inject_prefetch",
        "seq_interleave_prefetch",
    ),
}


def pipeline(choose: Choose) -> str:
    """Draw the code of a dataset of batches."""
    number = choose((0, 1, 1, 2, 2, 3, 4))
    code = _examples(choose, number) + _filled(choose(BATCHES), choose) + _filled(choose(AFTER), choose)
    return f"{code}.map(lambda x: {{'x': x}})"


def _examples(choose: Choose, stages: int) -> str:
    if stages == 0:
        return _filled(choose(SOURCES), choose)
    if choose((False, False, False, True)):
        one, other = (_examples(choose, choose(tuple(range(stages)))) for _ in range(2))
        return (
            _filled(choose(PAIRS).replace("{one}", "<1>").replace("{other}", "<2>"), choose)
            .replace("<1>", one)
            .replace("<2>", other)
        )
    if choose((False,) * 15 + (True,)):
        return _filled(choose(TWICE).replace("{one}", "<1>"), choose).replace("<1>", _examples(choose, stages - 1))
    return _examples(choose, stages - 1) + _filled(choose(STAGES), choose)


def _filled(template: str, choose: Choose) -> str:
    for hole, values in HOLES.items():
        while f"{{{hole}}}" in template:
            template = template.replace(f"{{{hole}}}", str(choose(values)), 1)
    return template


def _options(
    *, deterministic: bool | None = None, threads: int = 0, optimization: str = "", symbolic: bool = False
) -> tf.data.Options:
    made = tf.data.Options()
    if deterministic is not None:
        made.deterministic = deterministic
    if threads:
        made.threading.private_threadpool_size = threads
    if optimization:
        setattr(made.experimental_optimization, optimization, True)
    if symbolic:
        made.experimental_symbolic_checkpoint = True
    return made


def _shuffled() -> Iterator[int]:
    """Numbers in an order that is the same in every call."""
    yield from np.random.default_rng(1).permutation(9)


def _anything() -> Iterator[int]:
    """Numbers in an order of their own in every call."""
    yield from np.random.default_rng().permutation(9)


def _lines(files: Any) -> tf.data.Dataset:
    return tf.data.TextLineDataset(files).map(lambda line: tf.strings.to_number(line, tf.int64))


def _records(files: Any) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(files).map(lambda record: tf.reshape(tf.io.parse_tensor(record, tf.int64), []))


def _fixed(files: Any) -> tf.data.Dataset:
    read = tf.data.FixedLengthRecordDataset(files, record_bytes=8)
    return read.map(lambda record: tf.reshape(tf.io.decode_raw(record, tf.int64), []))


def _csv(files: Any, batch_size: int, **settings: Any) -> tf.data.Dataset:
    made = tf.data.experimental.make_csv_dataset(files, batch_size, column_defaults=[tf.int64] * 2, **settings)
    return made.unbatch().map(lambda row: row["a"] * 10 + row["b"])


def _examples_of(files: Any, batch_size: int, **settings: Any) -> tf.data.Dataset:
    features = {"x": tf.io.FixedLenFeature([], tf.int64)}
    made = tf.data.experimental.make_batched_features_dataset(files, batch_size, features, **settings)
    return made.unbatch().map(lambda row: row["x"])


def _example(value: int) -> bytes:
    feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
    return bytes(tf.train.Example(features=tf.train.Features(feature={"x": feature})).SerializeToString())


class Workshop:
    """Where the code of pipelines is run: its names, and files to read.

    Args:
        directory: for the files.
    """

    def __init__(self, directory: Path) -> None:
        files: dict[str, list[str]] = {
            kind: [str(directory / f"{number}.{kind}") for number in range(4)] for kind in ("txt", "record", "bytes")
        }
        tables, examples, saved = ([str(directory / f"{number}.{kind}") for number in range(4)] for kind in "tes")
        for number, (text, record, fixed) in enumerate(zip(*files.values(), strict=True)):
            values = [10 * number + line for line in range(number + 1)]
            Path(text).write_text("".join(f"{value}\n" for value in values))
            Path(fixed).write_bytes(np.array(values, np.int64).tobytes())
            with tf.io.TFRecordWriter(record) as writer:
                for value in values:
                    writer.write(tf.io.serialize_tensor(tf.constant(value, tf.int64)).numpy())
            Path(tables[number]).write_text("a,b\n" + "".join(f"{number},{line}\n" for line in range(number + 1)))
            with tf.io.TFRecordWriter(examples[number]) as writer:
                for value in values:
                    writer.write(_example(value))
        tf.data.Dataset.range(9).save(saved[0], shard_func=lambda x: x // 4)
        reducer = tf.data.experimental.Reducer(lambda _: np.int64(0), lambda s, x: s + x, lambda s: s)
        keys = tf.range(5, dtype=tf.int64)
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys * 7), 0)
        self._directory = directory
        self._names: dict[str, Any] = {
            "D": tf.data.Dataset,
            "tf": tf,
            "np": np,
            "files": files["txt"],
            "lines": _lines,
            "csv_files": files["txt"],
            "record_files": files["record"],
            "records": _records,
            "fixed_files": files["bytes"],
            "fixed": _fixed,
            "number": tf.TensorSpec([], tf.int64),
            "shuffled": _shuffled,
            "anything": _anything,
            "options": _options,
            "table": table,
            "table_files": tables,
            "csv": _csv,
            "example_files": examples,
            "examples": _examples_of,
            "saved": saved[0],
            "reducer": reducer,
        }

    def maker(self, code: str) -> Callable[[], dict[str, tf.data.Dataset]]:
        """A model's `datasets` of a pipeline's code; caches have files that all of its calls share."""
        caches = tempfile.mkdtemp(dir=self._directory)

        def make() -> dict[str, tf.data.Dataset]:
            numbers = iter(range(9))
            names = {**self._names, "new_file": lambda: f"{caches}/{next(numbers)}"}
            return {"trn": eval(code, names)}

        without_autograph: Callable[[], dict[str, tf.data.Dataset]] = tf.autograph.experimental.do_not_convert(make)
        return without_autograph  # which takes longer than all the rest
