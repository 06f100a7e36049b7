"""A random order of any number of examples, with a single number as its position.

The order is a permutation of the example indices, computed index by index without a buffer. Each iteration over the
dataset has a new order and can start at any position in it.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import numpy as np
import tensorflow as tf

from prototrain.errors import DataError

Shuffle: TypeAlias = Literal["index", False] | None

ABOUT = "about_for_prototrain"
"""An attribute of a dataset's Python object: lines that describe it, and its files; TensorFlow has neither."""
PARALLEL: Any = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}
"""Arguments of a parallel stage whose order is the same in every run."""
_ORDER = "order_for_prototrain"  # an attribute of the dataset's Python object
_BLOCK, _BLOCK_BYTES = 1024, 2**20  # maximum number of examples read at once, and their approximate size
_ROUNDS = 8  # rounds of the cipher that computes the permutation; must be even
_as_it_is = tf.autograph.experimental.do_not_convert  # the readers trace no Python control flow
_thread = threading.local()


def pass_being_made() -> int:
    """Return the index, from 0, of the pass that this thread calls a model's `datasets` for."""
    _thread.is_asked = True
    found: int = getattr(_thread, "number", 0)
    return found


@contextmanager
def making_pass(number: int) -> Iterator[Callable[[], bool]]:
    """Context manager around a call of a model's `datasets` for a pass.

    Yields a function that returns whether `pass_being_made` was called.
    """
    _thread.number, _thread.is_asked = number, False
    try:
        yield lambda: _thread.is_asked
    finally:
        _thread.number = 0


class Order:
    """The random orders of the examples of a dataset of `length`, one for each iteration.

    The seed comes from Python's global generator, which is seeded by the run while `datasets` is called.
    """

    def __init__(self, length: int) -> None:
        self.length, self.seed = length, random.getrandbits(31)
        self._made_in = pass_being_made()
        self._lock = threading.Lock()
        self._reading, self._start, self._is_cut = 0, 0, False

    def go_to(self, reading: int, start: int) -> None:
        """Set the index of the next iteration, from 0, and its first position in the order."""
        with self._lock:
            self._reading, self._start, self._is_cut = reading, start, False

    def begin(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Start an iteration; returns its first position (int64 []) and the seed of its order (int32 [3]).

        After an iteration that did not start at 0, `random_order` starts one more, which has no examples.
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
    """Return the order of a stage that `random_order` made, or None."""
    return getattr(stage, _ORDER, None)


def random_order(
    length: int,
    read: Callable[[tf.Tensor], dict[str, Any]],
    *,
    about: str,
    files: list[str],
    each: float | None,
) -> tf.data.Dataset:
    """Return a dataset of examples in random order.

    Args:
        length: number of examples.
        read: returns the examples at several indices, or the example at one index if `each` is None; traced.
        about: a noun for the examples, such as "rows".
        files: the files that the examples are read from.
        each: approximate size of an example in bytes, to read several at once; None to read one by one.
    """
    order, block = Order(length), _BLOCK if each is None else block_of(each, _BLOCK)

    def places(_: tf.Tensor) -> tf.data.Dataset:
        start, seed = tf.numpy_function(order.begin, [], [tf.int64, tf.int32])
        start, seed = tf.ensure_shape(start, []), tf.ensure_shape(seed, [3])
        numbers = tf.data.Dataset.range(start, length).batch(block)
        return numbers.map(_as_it_is(lambda block: _permuted(block, seed, length)))

    source = tf.data.Dataset.range(1)
    setattr(source, ABOUT, ([f"shuffle by index({length} {about}, seed {order.seed})"], files))
    numbers = source.flat_map(_as_it_is(places))
    if each is None:
        examples = numbers.unbatch().map(_as_it_is(read), **PARALLEL)
    else:
        examples = numbers.map(_as_it_is(read), **PARALLEL).unbatch()
    # `take` gives TensorFlow a static length, although an iteration that starts in the middle has fewer examples.
    # The endless `repeat` ends when an iteration has no examples; see `Order.begin`.
    found = examples.repeat().take(length)
    setattr(found, _ORDER, order)
    return found


def _permuted(numbers: tf.Tensor, seed: tf.Tensor, length: int) -> tf.Tensor:
    """Map indices through a random permutation of all indices below `length`."""
    # `tf.random.experimental.index_shuffle` has four rounds. With five indices, some orders are then twice as likely.
    last = tf.constant(length - 1, tf.int64)
    return tf.raw_ops.RandomIndexShuffle(index=numbers, seed=seed, max_index=last, rounds=_ROUNDS)


def block_of(each: float, most: int) -> int:
    """Return how many examples of `each` bytes to read or parse at once, at most `most`."""
    return max(1, min(most, int(_BLOCK_BYTES / max(each, 1))))


def is_by_index(shuffle: Shuffle) -> bool:
    """Return whether a reader's `shuffle` is "index"; raises a DataError if it is unknown."""
    if shuffle not in (None, False, "index"):
        raise DataError(f'shuffle={shuffle!r} is not known; give "index", or Dataset.shuffle(...) behind the reader')
    return shuffle == "index"
