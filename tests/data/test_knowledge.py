"""What is known of each kind of pipeline, and the mode that follows from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain.data.knowledge import file_caches, knowledge_of
from prototrain.data.pipeline import description_of
from prototrain.data.stream import TrainingData

D = tf.data.Dataset
Make = Callable[[], tf.data.Dataset]


def numbers() -> tf.data.Dataset:
    return D.range(12)


def generated() -> tf.data.Dataset:
    return D.from_generator(lambda: iter(range(12)), output_signature=tf.TensorSpec([], tf.int64))


def seeded(x: tf.Tensor) -> tf.Tensor:
    return x + tf.random.uniform([], 0, 9, tf.int64, seed=1)


def parallel_batches() -> tf.data.Options:
    options = tf.data.Options()
    options.experimental_optimization.parallel_batch = True
    return options


def noisy(x: tf.Tensor) -> tf.Tensor:
    return x + tf.random.uniform([], 0, 9, tf.int64)


def with_options(**settings: Any) -> tf.data.Dataset:
    options = tf.data.Options()
    for name, value in settings.items():
        setattr(options, name, value)
    return numbers().shuffle(3).with_options(options)


VARIABLE = tf.Variable(1, dtype=tf.int64)
EARLIER = D.range(12).shuffle(4, seed=3)
EARLIER_TWICE = EARLIER.shuffle(2, seed=1)


def read_twice(one: Callable[[Any], Any], other: Callable[[Any], Any]) -> tf.data.Dataset:
    shuffled = numbers().shuffle(6)
    return D.zip(one(shuffled), other(shuffled)).map(lambda x, y: x * 100 + y)


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(reader: Callable[[Any], Any] | None = None) -> tf.data.Dataset:
    if not Path("saved").exists():
        numbers().save("saved", shard_func=lambda x: x % 3)
    return D.load("saved", reader_func=reader)


def from_csv(**settings: Any) -> tf.data.Dataset:
    Path("rows.csv").write_text("x\n" + "".join(f"{number}\n" for number in range(12)))
    made = tf.data.experimental.make_csv_dataset("rows.csv", 3, num_epochs=1, **settings)
    return made.unbatch().map(lambda row: row["x"])


def chosen(choices: tf.data.Dataset) -> tf.data.Dataset:
    return D.choose_from_datasets([numbers(), numbers()], choices)


def chosen_with(other: tf.data.Dataset) -> tf.data.Dataset:
    return D.choose_from_datasets([numbers(), other], D.range(2).repeat(6), stop_on_empty_dataset=False)


def resampled(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.rejection_resample(lambda x: tf.cast(x % 2, tf.int32), [0.5, 0.5]).map(lambda _, x: x)


SAVED: dict[str, Make] = {
    "slices": lambda: D.from_tensor_slices(np.arange(12)),
    "one shuffle": lambda: numbers().shuffle(3),
    "a shuffle of batches": lambda: numbers().batch(2).shuffle(3).unbatch(),
    "parallel maps": lambda: numbers().shuffle(3).map(lambda x: x + 1, num_parallel_calls=2).prefetch(2),
    "stateless random ops": lambda: numbers().map(lambda x: tf.random.stateless_uniform([], [x, 1])),
    "an index": lambda: numbers().enumerate().map(lambda i, x: i + x),
    "branches": lambda: numbers().map(lambda x: tf.cond(x > 2, lambda: x, lambda: -x)),
    "assertions": lambda: numbers().map(lambda x: tf.ensure_shape(x, [])),
    "a seed of its own": lambda: numbers().shuffle(3, seed=9).repeat(2),
    "threads": lambda: with_options(deterministic=True),
    "a shuffle that is repeated for ever": lambda: numbers().shuffle(3, seed=1).repeat().map(lambda x: x + 1).take(-1),
    "a shuffle ahead of an early end": lambda: numbers().shuffle(3, seed=1).prefetch(2).take(4).repeat(2),
    "made before it is called": lambda: EARLIER,
    "loaded, one shard after the other": lambda: loaded(lambda shards: shards.flat_map(lambda shard: shard)),
    "sparse batches": lambda: numbers().map(lambda x: tf.fill([2], x)).sparse_batch(2, [2]).map(tf.sparse.reduce_sum),
    "a map with its batch": lambda: numbers().apply(tf.data.experimental.map_and_batch(lambda x: x, 2)).unbatch(),
}
REPLAYED: dict[str, tuple[Make, str]] = {
    "two shuffles": (lambda: numbers().shuffle(3).shuffle(2), "shuffled in several places"),
    "files and examples": (
        lambda: numbers().shuffle(9).interleave(lambda x: D.range(x)).shuffle(9),
        "shuffled in several places",
    ),
    "files only": (lambda: numbers().shuffle(9).interleave(lambda x: D.range(x)), "a shuffle below Interleave"),
    "concatenated": (lambda: numbers().shuffle(3).concatenate(numbers()), "a shuffle below Concatenate"),
    "sampled": (lambda: D.sample_from_datasets([numbers(), numbers()]), "stage (Random|DirectedInterleave)"),
    "a generator": (generated, "Python code"),
    "a Python function": (lambda: numbers().map(lambda x: tf.py_function(lambda y: y, [x], tf.int64)), "Python code"),
    "random ops": (lambda: numbers().map(noisy), r"RandomUniform\w*; draw .* or tf.image.stateless_random_"),
    "random ops behind an early end": (lambda: numbers().map(noisy).take(3).prefetch(2).repeat(2), "RandomUniform"),
    "a shuffle that is repeated ahead of the end of a pass": (
        lambda: numbers().shuffle(3, seed=1).repeat().prefetch(9).take(4),
        "Shuffle draws random numbers for what is read ahead",
    ),
    "random ops ahead of nothing": (
        lambda: numbers().map(seeded).padded_batch(2).take(2).repeat(2).unbatch(),
        "RandomUniform",
    ),
    "random ops to the end": (lambda: numbers().map(noisy).prefetch(2).repeat(2), "RandomUniform"),
    "an inner shuffle": (lambda: numbers().flat_map(lambda x: D.range(4).shuffle(4)), "a shuffle in it"),
    "an inner cache": (lambda: numbers().interleave(lambda x: D.range(3).cache()), "a cache in it"),
    "a shuffle that is read twice": (
        lambda: read_twice(lambda d: d, lambda d: d).prefetch(2),
        "shuffled in several places",
    ),
    "chosen in turns": (lambda: chosen(D.range(2).repeat(6)), "stage DirectedInterleave"),
    "chosen as a tensor says": (lambda: chosen(D.from_tensor_slices(np.arange(12) % 2)), "stage DirectedInterleave"),
    "chosen in a random order": (lambda: chosen(D.range(2).shuffle(2).repeat(6)), "stage DirectedInterleave"),
    "chosen at random": (lambda: chosen(D.random(seed=1).map(lambda x: x % 2)), "stage DirectedInterleave"),
    "chosen by a cache in a file": (lambda: chosen(D.range(2).cache("kept")), "cached in the file kept"),
    "resampled": (lambda: resampled(numbers()), "stage DirectedInterleave"),
    "loaded": (loaded, "the function of Load runs the op ParallelInterleaveDatasetV4"),
    "tables of text": (lambda: from_csv(shuffle_seed=1), "stage ParallelInterleave"),
    "random numbers of a function": (lambda: numbers().flat_map(lambda x: D.random(seed=1).take(2)), "RandomDataset"),
    "symbolic checkpoints": (lambda: with_options(experimental_symbolic_checkpoint=True), "symbolic_checkpoint"),
}


CHANGING = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)


def drawn_anew() -> tf.data.Dataset:
    return D.random(seed=1, rerandomize_each_iteration=True)


RESTARTED: dict[str, tuple[Make, str]] = {
    "any order": (
        lambda: numbers().map(lambda x: x, num_parallel_calls=2, deterministic=False),
        "ParallelMap may give another order",
    ),
    "any order of files": (
        lambda: numbers().interleave(lambda x: D.range(3), num_parallel_calls=2, deterministic=False),
        "ParallelInterleave may give another order",
    ),
    "any order by option": (lambda: with_options(deterministic=False), "its options leave the order open"),
    "parallel random ops": (
        lambda: numbers().map(noisy, num_parallel_calls=2),
        "random numbers in parallel; draw them with tf.random.stateless_",
    ),
    "random ops ahead of an early end": (
        lambda: numbers().map(noisy).prefetch(2).take(3).repeat(2),
        "Map draws random numbers for what is read ahead",
    ),
    "random ops below a map that TensorFlow makes parallel": (
        lambda: numbers().map(seeded).map(lambda x: x + 1).take(3).repeat(2),
        "Map draws random numbers for what is read ahead",
    ),
    "random ops in a batch that TensorFlow makes one with them": (
        lambda: numbers().map(seeded).take(-1).batch(2).take(2).repeat(2).unbatch(),
        "Map draws random numbers for what is read ahead",
    ),
    "a shuffle that is repeated ahead of an early end": (
        lambda: numbers().shuffle(3, seed=1).repeat().map(lambda x: x + 1).take(4).repeat(8),
        r"Shuffle draws random numbers .*; call repeat\(\) once, behind what ends it early",
    ),
    "other random numbers each time ahead of an early end": (
        lambda: drawn_anew().take(3).repeat().map(lambda x: x + 1).prefetch(9).take(4).repeat(10),
        r"Random draws random numbers .*; call repeat\(\) once, behind what ends it early",
    ),
    "a shuffle below a map that TensorFlow makes parallel": (
        lambda: read_twice(lambda d: d.repeat(), lambda d: d.repeat().map(lambda x: x + 1)),
        "several stages read the same Shuffle, some of them ahead",
    ),
    "random ops in an optimised pipeline": (
        lambda: numbers().map(noisy).batch(2).unbatch().take(3).repeat(2).with_options(parallel_batches()),
        "Map draws random numbers for what is read ahead",
    ),
    "random ops ahead in a function": (
        lambda: numbers().flat_map(lambda x: D.range(3).map(seeded).prefetch(1).take(2)),
        "FlatMap draws random numbers in parallel",
    ),
    "a shuffle that two read ahead": (
        lambda: read_twice(lambda d: d.repeat().prefetch(4), lambda d: d.repeat().prefetch(4)),
        "several stages read the same Shuffle, some of them ahead",
    ),
    "a shuffle that one reads ahead": (
        lambda: read_twice(lambda d: d.repeat(), lambda d: d.repeat().map(lambda x: x, num_parallel_calls=2)),
        "several stages read the same Shuffle, some of them ahead",
    ),
    "a variable": (lambda: numbers().map(lambda x: x + VARIABLE), "reads a variable"),
    "a table that can change": (
        lambda: numbers().map(lambda x: x + CHANGING.lookup(x)),
        "the function of Map looks into a table that can change",
    ),
    "the time": (lambda: numbers().map(lambda x: tf.timestamp()), "op Timestamp, of which nothing is known"),
    "a snapshot": (lambda: numbers().snapshot("nowhere"), r"the run that has written it; Dataset.save\(\) it ahead"),
    "tables of text in any order": (lambda: from_csv(sloppy=True), "ParallelInterleave may give another order"),
    "resampled from what is shuffled": (
        lambda: resampled(numbers().shuffle(3)),
        r"the same Shuffle, some .*; shuffle\(\) behind rejection_resample\(\)",
    ),
    "chosen by a variable": (
        lambda: chosen(numbers().map(lambda x: x % 2 * VARIABLE)),
        "a hidden stage .* of which nothing is known",
    ),
    "chosen by the time": (
        lambda: chosen(numbers().map(lambda x: tf.cast(tf.timestamp(), tf.int64) % 2)),
        r"a hidden stage \(what choose_from_datasets\(\) chooses by is one\) runs the op Timestamp",
    ),
    "chosen in any order": (
        lambda: chosen(numbers().map(lambda x: x % 2, num_parallel_calls=2, deterministic=False)),
        "a hidden stage .* may give another order",
    ),
    "chosen at random in parallel": (
        lambda: chosen(numbers().map(lambda x: seeded(x) % 2, num_parallel_calls=2)),
        "a hidden stage .* draws random numbers in parallel",
    ),
    "chosen at random ahead of an early end": (
        lambda: chosen(D.range(2).shuffle(2).repeat(6)).repeat(2),
        r"a hidden stage .* draws random numbers .*; leave out the repeat\(\) behind it",
    ),
    "chosen from what is read ahead without an end": (
        lambda: chosen_with(numbers().shuffle(3, seed=1).repeat().prefetch(2)).repeat(2),
        "Shuffle draws random numbers for what is read ahead",
    ),
    "two shuffles made before": (lambda: EARLIER_TWICE, "made before it was called"),
}


def data_of(make: Make) -> TrainingData:
    lines: list[str] = []
    return TrainingData(lambda: {"trn": make().batch(2).map(lambda x: {"x": x})}, seed=5, announce=lines.append)


@pytest.mark.parametrize("make", SAVED.values(), ids=SAVED)
def test_saved(make: Make) -> None:
    data = data_of(make)
    assert (data.mode, data.reason) == ("iterator", "")


@pytest.mark.parametrize(("make", "why"), REPLAYED.values(), ids=REPLAYED)
def test_replayed(make: Make, why: str) -> None:
    data = data_of(make)
    assert data.mode == "replay"
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(data.reason)


@pytest.mark.parametrize(("make", "why"), RESTARTED.values(), ids=RESTARTED)
def test_restarted(make: Make, why: str) -> None:
    data = data_of(make)
    assert data.mode == "restart"
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(data.reason)


def test_what_python_chooses_by_is_checked() -> None:
    def choices() -> tf.data.Dataset:
        return D.from_generator(lambda: iter([0, 1] * 6), output_signature=tf.TensorSpec([], tf.int64))

    assert knowledge_of(chosen(choices())).is_python and not knowledge_of(chosen(D.range(2))).is_python


def test_choices_without_a_seed() -> None:
    tf.random.set_seed(None)
    unseeded = chosen(D.range(2).shuffle(2).repeat(6))
    tf.random.set_seed(1)
    assert "is shuffled or drawn without a seed" in str(knowledge_of(unseeded).not_repeated)


def test_what_is_hidden_is_described() -> None:
    def described(number: int) -> Any:
        D.range(3).map(lambda x: x + 1)  # names count up
        return description_of(chosen(D.range(6).map(lambda x: tf.cond(x > number, lambda: x % 2, lambda: 0 * x))))

    assert described(2) == described(2)
    assert described(2).lines != described(3).lines and described(2).whole != described(3).whole


@pytest.mark.parametrize(
    "make",
    [
        lambda: chosen(D.range(2).shuffle(2).repeat(6)),
        lambda: loaded(lambda shards: shards.shuffle(3).flat_map(lambda shard: shard)),
    ],
)
def test_seeds_of_another_pass_are_no_other_data(make: Make) -> None:
    lines: list[str] = []
    data = TrainingData(lambda: {"trn": make().batch(2).map(lambda x: {"x": x})}, seed=5, announce=lines.append)
    for _ in range(8):  # six are a pass
        data.next_batch()
    assert data.mode == "replay" and not lines


def test_what_is_loaded_is_described(tmp_path: Path) -> None:
    one = description_of(loaded())
    numbers().save("other")
    other = description_of(D.load("other"))
    assert one.whole != other.whole and one.files.below != other.files.below
    Path("saved").rename("moved")
    moved = description_of(D.load(str(tmp_path / "moved")))
    assert moved.anywhere == one.anywhere and moved.files.below == one.files.below


def test_a_shuffle_without_a_seed() -> None:
    tf.random.set_seed(None)
    unseeded = numbers().shuffle(3)
    tf.random.set_seed(1)
    known = knowledge_of(unseeded)
    assert known.not_saved == known.not_repeated
    assert "without a seed" in str(known.not_saved)


def test_caches_in_memory_have_no_files(tmp_path: Path) -> None:
    file = str(tmp_path / "file")
    assert file_caches(numbers().interleave(lambda x: D.range(3).cache()).cache()) == []
    assert file_caches(numbers().interleave(lambda x: D.range(3).cache(file))) == [file]
    assert file_caches(numbers().cache(file)) == [file]
