"""Exact nearest neighbors by cosine similarity, a block of queries at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Retrieved:
    """The entries found for each query, best first.

    Attributes:
        indices: int32 [queries, k], rows of the catalogue.
        similarities: float32 [queries, k].
        right: bool [queries, k], whether it is of the query's product.
    """

    indices: Array
    similarities: Array
    right: Array


def retrieve(embeddings: Array, *, k: int, products: Array, block: int = 512) -> Retrieved:
    """Find the `k` most similar other entries for each entry of a catalogue; of equals, the one that comes first.

    Only the similarities of one block of queries, block x catalogue, are in memory at a time.

    Args:
        embeddings: float32 [entries, units], of length 1.
        k: the number of results.
        products: int [entries].
        block: the number of queries at a time.
    """
    entries, k = tf.constant(embeddings), min(k, len(embeddings) - 1)
    found: list[tuple[Array, Array, Array]] = []
    for start in range(0, len(embeddings), block):
        part = np.arange(start, min(start + block, len(embeddings)))
        similarity = tf.matmul(tf.gather(entries, part), entries, transpose_b=True).numpy()
        similarity[np.arange(len(part)), part] = -np.inf  # a query does not find itself
        values, indices = (tensor.numpy() for tensor in tf.math.top_k(similarity, k))
        found.append((indices, values, products[indices] == products[part][:, None]))
    return Retrieved(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def recall_at(ks: Sequence[int], right: Array) -> list[float]:
    """Return the share of queries with a right result among the first k, for each k.

    Args:
        ks: values of k.
        right: bool [queries, retrieved], as `Retrieved.right`.
    """
    return [float(right[:, :k].any(axis=1).mean()) for k in ks]
