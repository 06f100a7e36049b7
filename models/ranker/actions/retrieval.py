"""Exact nearest neighbours by cosine similarity, a block of queries at a time, and what they say of an embedding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

Array: TypeAlias = np.ndarray[Any, Any]

EDGES = np.linspace(-1.0, 1.0, 201)  # of the histograms' bins


@dataclass(frozen=True)
class Retrieved:
    """What was found for each query, best first.

    Attributes:
        indices: int32 [queries, k], rows of the catalogue; -1 where the catalogue has no more.
        similarities: float32 [queries, k].
        right: bool [queries, k], whether it is of the query's product.
        positives: int64 [bins], how many pairs of a query and a picture of its product have a similarity in each bin.
        negatives: int64 [bins], likewise, of pairs of different products.
    """

    indices: Array
    similarities: Array
    right: Array
    positives: Array
    negatives: Array


def retrieve(
    queries: Array,
    catalogue: Array,
    *,
    k: int,
    query_products: Array,
    catalogue_products: Array,
    itself: Array,
    block: int = 512,
) -> Retrieved:
    """Find the `k` most similar entries of a catalogue for each query; of equals, the one that comes first.

    Memory holds the similarities of one block of queries at a time, block x catalogue, and no more.

    Args:
        queries: float32 [queries, units], of length 1.
        catalogue: float32 [entries, units], likewise.
        k: how many to find.
        query_products: int [queries].
        catalogue_products: int [entries].
        itself: int [queries], the row of the catalogue that is the query itself and is left out, or -1.
        block: how many queries at a time.
    """
    n, k, bins = len(queries), min(k, len(catalogue)), len(EDGES) - 1
    found = Retrieved(
        np.full((n, k), -1, np.int32),
        np.full((n, k), -np.inf, np.float32),
        np.zeros((n, k), bool),
        np.zeros(bins, np.int64),
        np.zeros(bins, np.int64),
    )
    entries = tf.constant(catalogue)
    for start in range(0, n, block):
        part = slice(start, start + block)
        similarity = tf.matmul(tf.constant(queries[part]), entries, transpose_b=True).numpy()
        left_out = np.flatnonzero(itself[part] >= 0), itself[part][itself[part] >= 0]
        similarity[left_out] = -np.inf
        values, indices = (tensor.numpy() for tensor in tf.math.top_k(similarity, k))
        found.similarities[part] = values
        found.indices[part] = np.where(np.isfinite(values), indices, -1)
        found.right[part] = (catalogue_products[indices] == query_products[part][:, None]) & np.isfinite(values)
        same = query_products[part][:, None] == catalogue_products[None, :]
        same[left_out] = False
        positives = _histogram(similarity[same])
        found.positives[:] += positives
        found.negatives[:] += _histogram(similarity) - positives
        found.negatives[0] -= len(left_out[0])
    return found


def recall_at(ks: Sequence[int], right: Array) -> list[float]:
    """The share of queries that have a right one among the first k, for each k.

    Args:
        ks: values of k.
        right: bool [queries, retrieved], as `Retrieved.right`.
    """
    return [float(right[:, :k].any(axis=1).mean()) for k in ks]


def _histogram(similarities: Array) -> Array:
    """How many lie in each bin, int64; what rounding has put beyond the edges, and minus infinity, at the ends."""
    ends = EDGES[[0, -1]].astype(np.float32)
    counts: Array = tf.histogram_fixed_width(similarities, ends, len(EDGES) - 1, tf.int64).numpy()
    return counts
