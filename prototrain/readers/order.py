"""A random order of any number of examples, whose place is a number.

The order is a permutation of the numbers of all examples, computed number by number: nothing is buffered. Each reading
of the dataset has another one, and can begin at any of its places.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import numpy as np
import tensorflow as tf

from prototrain.errors import DataError
from prototrain.system.terminal import say

Shuffle: TypeAlias = Literal["index", False] | None

ABOUT = "about_for_prototrain"
"""An attribute of a dataset's Python object: its description in lines, and its files; TensorFlow knows neither."""
PARALLEL: Any = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}
"""Arguments of a parallel stage that has the same order in every run."""
_ORDER = "order_for_prototrain"  # on the Python object of a dataset
_BLOCK, _BLOCK_BYTES = 1024, 2**20  # examples that are read at once, and about how much
_ROUNDS = 8  # of the cipher that a permutation is made by; an even number
_as_it_is = tf.autograph.experimental.do_not_convert  # there is no Python control flow in what the readers trace
_thread = threading.local()


def pass_being_made() -> int:
    """The number, from 0, of the pass that a model's `datasets` is called for in this thread."""
    _thread.is_asked = True
    found: int = getattr(_thread, "number", 0)
    return found


@contextmanager
def making_pass(number: int) -> Iterator[Callable[[], bool]]:
    """Context manager around the call of a model's `datasets` for a pass; yields whether `pass_being_made` was called,
    as a function."""
    _thread.number, _thread.labels, _thread.is_asked = number, {}, False
    try:
        yield lambda: _thread.is_asked
    finally:
        _thread.number, _thread.labels = 0, None


def compare_labels(source: str, classes: Sequence[str]) -> None:
    """Warn if a class has another label here than in a source that was read earlier in the same call of `datasets`."""
    known: dict[str, list[str]] | None = getattr(_thread, "labels", None)
    if known is None or _thread.number:
        return
    for other, names in known.items():
        if changed := [name for name in classes if name in names and names.index(name) != classes.index(name)]:
            name = changed[0]
            say(
                f"WARNING: the class {name!r} is label {names.index(name)} in {other} and {classes.index(name)} in "
                f"{source}: give both the same classes=[...]"
            )
    known[source] = list(classes)


class Order:
    """The orders of a number of examples: each reading has its own, which follows from a seed and its number.

    Without a seed, it comes from Python's global generator, which in `datasets` depends on the run's seed.
    """

    def __init__(self, length: int, seed: int | None) -> None:
        self.length = length
        self.seed = random.getrandbits(31) if seed is None else seed
        self._made_in = pass_being_made()
        self._lock = threading.Lock()
        self._reading, self._start, self._is_cut = 0, 0, False

    def go_to(self, reading: int, start: int) -> None:
        """Have the next reading be that of this number, from 0, and start at this place in it."""
        with self._lock:
            self._reading, self._start, self._is_cut = reading, start, False

    def begin(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Begin a reading; returns the number of its first example, and the seed of its order.

        `random_order` asks once more at the end of a reading that did not start at 0, for one without examples.
        """
        with self._lock:
            if self._is_cut:
                self._is_cut = False
                return np.array(self.length, np.int64), np.zeros(3, np.int32)
            start, reading = self._start, self._reading
            self._reading, self._start, self._is_cut = reading + 1, 0, start > 0
        digest = hashlib.sha256(f"{self.seed}/{self._made_in}/{reading}".encode()).digest()
        return np.array(start, np.int64), np.frombuffer(digest[:12], np.int32)


def order_of(stage: Any) -> Order | None:
    """The order of a stage of a dataset, if `random_order` has made it."""
    return getattr(stage, _ORDER, None)


def random_order(
    order: Order,
    read: Callable[[tf.Tensor], dict[str, Any]],
    *,
    about: str,
    files: list[str],
    each: float | None,
) -> tf.data.Dataset:
    """Examples in an order.

    `read` returns the examples of many numbers, or the example of one number, traced. `about` says what the examples
    are, in a word; `files` are those that they are read from. `each` is about the size of an example in bytes, to read
    many at once; None to read one by one.
    """
    block = _BLOCK if each is None else block_of(each, _BLOCK)

    def places(_: tf.Tensor) -> tf.data.Dataset:
        start, seed = tf.numpy_function(order.begin, [], [tf.int64, tf.int32])
        start, seed = tf.ensure_shape(start, []), tf.ensure_shape(seed, [3])
        numbers = tf.data.Dataset.range(start, order.length).batch(block)
        return numbers.map(_as_it_is(lambda block: _permuted(block, seed, order.length)))

    source = tf.data.Dataset.range(1)
    setattr(source, ABOUT, ([f"shuffle by index({order.length} {about}, seed {order.seed})"], files))
    numbers = source.flat_map(_as_it_is(places))
    if each is None:
        examples = numbers.unbatch().map(_as_it_is(read), **PARALLEL)
    else:
        examples = numbers.map(_as_it_is(read), **PARALLEL).unbatch()
    # So TensorFlow knows the length, of a dataset that has fewer examples when it is begun in the middle: what is taken
    # from has no end, and yet ends where it is begun again and has no examples.
    found = examples.repeat().take(order.length)
    setattr(found, _ORDER, order)
    return found


def _permuted(numbers: tf.Tensor, seed: tf.Tensor, length: int) -> tf.Tensor:
    """The places of some numbers in a permutation of all."""
    # `tf.random.experimental.index_shuffle` has four rounds, and of five numbers some orders come twice as often.
    last = tf.constant(length - 1, tf.int64)
    return tf.raw_ops.RandomIndexShuffle(index=numbers, seed=seed, max_index=last, rounds=_ROUNDS)


def block_of(each: float, most: int) -> int:
    """How many examples of this size in bytes to read or parse at once."""
    return max(1, min(most, int(_BLOCK_BYTES / max(each, 1))))


def is_by_index(shuffle: Shuffle) -> bool:
    """Whether a reader's `shuffle` asks for a random order; a DataError if it is not known."""
    if shuffle not in (None, False, "index"):
        raise DataError(f'shuffle={shuffle!r} is not known; give "index", or Dataset.shuffle(...) behind the reader')
    return shuffle == "index"
