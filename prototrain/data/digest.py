"""A digest of the batches that Python code makes, to find out whether they repeat."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

NO_BATCHES = "0" * 16
_KEPT = 64  # more than are ever read ahead of the training


class RollingDigest:
    """A digest over all batches of a pass, as far as it was read; made in the pipeline itself, beside the batches."""

    def __init__(self) -> None:
        with tf.init_scope(), tf.device("CPU:0"):
            self._digests = tf.Variable(
                tf.zeros([_KEPT + 1], tf.int64), trainable=False
            )  # the last: of the first batch

    def over(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """The same dataset, which leaves a digest with every batch that is read."""

        def leave_digest(state: tuple[Any, Any], batch: Any) -> tuple[tuple[Any, Any], Any]:
            number, before = state
            number, digest = number + 1, roll(batch, before)
            place = number % _KEPT
            self._digests.scatter_nd_update(
                [[place], [tf.where(number == 1, tf.constant(_KEPT, tf.int64), place)]], [digest, digest]
            )
            return (number, digest), batch

        return dataset.scan((tf.constant(0, tf.int64), tf.constant(0, tf.int64)), leave_digest)

    def first(self) -> str:
        """The digest of the first batch of the pass that is read."""
        return _text(self._digests[_KEPT])

    def after(self, batches: int) -> str:
        """The digest of the first so many batches of the pass that is read, of which the last is one of the newest."""
        return _text(self._digests[batches % _KEPT] if batches else tf.constant(0, tf.int64))


def digest_of(batch: Any) -> str:
    """The digest of one batch."""
    return _text(roll(batch, tf.constant(0, tf.int64)))


def digest_behind(batch: Any, before: str) -> str:
    """The digest of all batches up to this one.

    Args:
        batch: of tensors.
        before: the digest of those before it, `NO_BATCHES` if there are none.
    """
    number = int(before, 16)
    signed = number - 2**64 if number >= 2**63 else number
    return _text(roll(batch, tf.constant(signed, tf.int64)))


def roll(batch: Any, before: tf.Tensor) -> tf.Tensor:
    """The digest of a batch and of those before it, an int64 scalar; traced or eager."""
    tensors = [tensor for tensor in tf.nest.flatten(batch, expand_composites=True) if tensor.dtype != tf.variant]
    pieces = [tf.bitcast(before, tf.uint8), *(tf.fingerprint(_as_row(tensor))[0] for tensor in tensors)]
    return tf.bitcast(tf.fingerprint(_as_row(tf.concat(pieces, 0)))[0], tf.int64)


def _as_row(tensor: tf.Tensor) -> tf.Tensor:
    plain = tf.cast(tensor, tf.uint8) if tensor.dtype == tf.bool else tensor
    return tf.reshape(plain, [1, -1])


def _text(digest: tf.Tensor) -> str:
    return f"{int(digest) % 2**64:016x}"
