from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from prototrain.data.positions import holds_shuffle, read_state, write_state
from prototrain.tf_private import iterator_state, set_iterator_state


def numbers() -> tf.data.Dataset:
    return tf.data.Dataset.range(20).shuffle(5, seed=3).repeat().batch(3).prefetch(2)


def test_a_state_does_not_move_on_with_its_iterator(tmp_path: Path) -> None:
    iterator = iter(numbers())
    for _ in range(4):
        next(iterator)
    state = iterator_state(iterator)
    expected = [next(iterator).numpy().tolist() for _ in range(10)]
    write_state(str(tmp_path / "data"), state)
    del iterator
    other = iter(numbers())
    set_iterator_state(other, read_state(str(tmp_path / "data")))
    assert [next(other).numpy().tolist() for _ in range(10)] == expected


def holds(directory: Path, iterator: Any) -> bool:
    return holds_shuffle(write_state(str(directory / "data"), iterator_state(iterator)))


def test_whether_a_state_holds_the_generator_of_the_shuffle(tmp_path: Path) -> None:
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # a thread that reads ahead
    iterator = iter(tf.data.Dataset.range(8).shuffle(3).batch(3).repeat().with_options(options))
    found = []
    for _ in range(5):
        found.append(holds(tmp_path, iterator))
        next(iterator)
    assert found == [True, True, True, False, True]  # dropped with the last batch


def test_words_in_an_example_are_no_shuffle(tmp_path: Path) -> None:
    words = ["@@epoch_num_random_samples", "Iterator::Root and @@epoch_num_random_samples"]
    iterator = iter(tf.data.Dataset.from_tensor_slices(words).repeat().batch(2).prefetch(1))
    next(iterator)
    assert not holds(tmp_path, iterator)
