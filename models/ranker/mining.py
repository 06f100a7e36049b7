"""Triplets from a batch of pairs: each query with its positive and the hardest negative of the batch.

After "Learning Embeddings for Product Visual Search with Triplet Loss and Online Sampling", arXiv:1810.04652.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class Triplets(NamedTuple):
    """The triplets mined for the queries of one tower, each tensor [pairs].

    Attributes:
        positive: a query's cosine similarity to its positive, float32.
        negative: its similarity to its hardest negative, float32; minus infinity where there is none.
        hardest: the hardest negative's row among the candidates, int64.
    """

    positive: tf.Tensor
    negative: tf.Tensor
    hardest: tf.Tensor

    def scalars(self, margin: float) -> dict[str, tf.Tensor]:
        """Return the loss and further scalars.

        Args:
            margin: the required difference between the similarities of positive and negative.

        Returns:
            "loss"; "fraction_not_satisfied", of the queries that miss the margin; "fraction_hard", of those whose
            negative is more similar than their positive; "anchor-positive" and "anchor-negative", mean similarities.
        """
        excess = tf.maximum(self.negative - self.positive + margin, 0.0)
        exists = tf.cast(tf.math.is_finite(self.negative), tf.float32)
        return {
            "anchor-positive": tf.reduce_mean(self.positive),
            "anchor-negative": tf.math.divide_no_nan(
                tf.reduce_sum(tf.math.multiply_no_nan(self.negative, exists)), tf.reduce_sum(exists)
            ),
            "fraction_not_satisfied": tf.reduce_mean(tf.cast(excess > 0.0, tf.float32)),
            "fraction_hard": tf.reduce_mean(tf.cast(self.negative > self.positive, tf.float32)),
            "loss": tf.reduce_mean(excess),
        }


def mine(queries: tf.Tensor, positives: tf.Tensor, products: tf.Tensor, *, over_all_towers: bool = True) -> Triplets:
    """Find each query's hardest negative among the queries and positives of other products.

    With synchronous towers, the candidates are those of all towers. Each tower's loss is then a mean over
    its own queries, and the gather passes gradients back to where the candidates came from, so the towers' averaged
    gradients are those of one tower with the whole batch.

    Args:
        queries: float32 [pairs, units], of length 1.
        positives: likewise.
        products: int32 [pairs].
        over_all_towers: whether candidates come from all towers, or from this one only.
    """
    candidates = [(queries, products), (positives, products)]
    if over_all_towers:
        candidates = [(_gather(embeddings), _gather(of)) for embeddings, of in candidates]
    embeddings, of = (tf.concat(parts, 0) for parts in zip(*candidates, strict=True))
    similarity = tf.matmul(queries, embeddings, transpose_b=True)
    # To minus infinity and not to zero: a zero would be the hardest negative of a query that is unlike all others.
    similarity = tf.where(products[:, None] == of[None, :], -float("inf"), similarity)
    return Triplets(
        positive=tf.reduce_sum(queries * positives, 1),
        negative=tf.reduce_max(similarity, 1),
        hardest=tf.argmax(similarity, 1),
    )


def _gather(tensor: tf.Tensor) -> tf.Tensor:
    """Return the rows of all towers; the gradient sums the gradients of all towers for this tower's rows."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return tensor
    return context.all_gather(tensor, axis=0)
