"""models.ranker: exact retrieval in blocks, and what is counted of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.ranker.actions.outcome import KS, Outcome
from models.ranker.actions.projector import choose
from models.ranker.actions.retrieval import EDGES, Retrieved, recall_at, retrieve
from models.ranker.layouts import Picture

K = 50


def _embeddings(count: int, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(count, 6)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def _products(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 20, count)


def _neighbours(queries: np.ndarray, catalogue: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-queries.astype(np.float64) @ catalogue.astype(np.float64).T, axis=1)[:, :k]


@pytest.mark.parametrize("block", [7, 64, 1000])
def test_neighbours_and_recall_are_those_of_a_full_sort(block: int) -> None:
    queries, catalogue = _embeddings(90, 1), _embeddings(200, 2)
    products, others = _products(90, 3), _products(200, 4)
    found = retrieve(queries, catalogue, k=K, query_products=products, catalogue_products=others,
                     itself=np.full(90, -1), block=block)  # fmt: skip
    exact = _neighbours(queries, catalogue, K)
    np.testing.assert_array_equal(found.indices, exact)
    right = others[exact] == products[:, None]
    np.testing.assert_array_equal(found.right, right)
    assert recall_at(KS, found.right) == [right[:, :k].any(axis=1).mean() for k in KS]
    similarity = np.sum(queries[:, None] * catalogue[found.indices], 2)
    np.testing.assert_allclose(found.similarities, similarity, atol=1e-6)


@pytest.mark.parametrize("block", [16, 1000])
def test_a_query_does_not_find_itself(block: int) -> None:
    catalogue, products = _embeddings(120, 1), _products(120, 3)
    own = np.array([5, 80, -1, 119])
    found = retrieve(catalogue[[5, 80, 7, 119]], catalogue, k=K, query_products=products[[5, 80, 7, 119]],
                     catalogue_products=products, itself=own, block=block)  # fmt: skip
    exact = _neighbours(catalogue[[5, 80, 7, 119]], catalogue, K + 1)
    for number, row in enumerate(own):
        assert row not in found.indices[number]
        expected = exact[number][exact[number] != row][:K]
        np.testing.assert_array_equal(found.indices[number], expected)
    everything = retrieve(catalogue, catalogue, k=K, query_products=products, catalogue_products=products,
                          itself=np.arange(120), block=block)  # fmt: skip
    counts = np.bincount(products)
    assert everything.positives.sum() == np.sum(counts * (counts - 1))
    assert everything.negatives.sum() == 120 * 119 - everything.positives.sum()


def test_histograms_count_every_pair() -> None:
    queries, catalogue, products, others = _embeddings(30, 1), _embeddings(40, 2), _products(30, 3), _products(40, 4)
    found = retrieve(queries, catalogue, k=3, query_products=products, catalogue_products=others,
                     itself=np.full(30, -1), block=8)  # fmt: skip
    similarity, same = queries @ catalogue.T, products[:, None] == others
    # An edge may fall to either side in float32.
    assert np.abs(found.positives - np.histogram(similarity[same], EDGES)[0]).sum() <= 2
    assert np.abs(found.negatives - np.histogram(similarity[~same], EDGES)[0]).sum() <= 2


def test_a_catalogue_smaller_than_k_and_equal_pictures() -> None:
    catalogue = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], np.float32)
    found = retrieve(catalogue, catalogue, k=K, query_products=np.arange(3), catalogue_products=np.arange(3),
                     itself=np.arange(3))  # fmt: skip
    assert found.indices.tolist() == [[1, 2, -1], [0, 2, -1], [0, 1, -1]]  # of equals, the first
    assert not found.right.any() and recall_at([1, 50], found.right) == [0.0, 0.0]


def test_the_counts_of_an_outcome() -> None:
    pictures = [Picture(f"{n}.jpg", product, category) for n, (product, category) in enumerate(
        [("m1", "mug"), ("m1", "mug"), ("l1", "lamp"), ("l1", "lamp")])]  # fmt: skip
    indices = np.array([[1, 2], [2, 0], [3, 0], [2, -1]])
    right = np.array([[True, False], [False, True], [True, False], [True, False]])
    found = Retrieved(indices, np.ones((4, 2), np.float32), right, np.zeros(200, int), np.zeros(200, int))
    outcome = Outcome(Path(), pictures, pictures, found)
    assert outcome.table() == [
        ["lamp", 2, 1.0, 1.0, 1.0, 1.0, 1.0],
        ["mug", 2, 0.5, 1.0, 1.0, 1.0, 0.5],
        ["all", 4, 0.75, 1.0, 1.0, 1.0, 0.75],
    ]
    assert outcome.confusion.tolist() == [[2, 0], [1, 1]]
    assert outcome.summary()["recall@1"] == 0.75 and outcome.summary()["classes"]["mug"]["recall@1"] == 0.5
    assert outcome.retrieved_for(3, 2) == [(pictures[2], 1.0, True)]


def test_pictures_for_the_projector_are_whole_products() -> None:
    pictures = [Picture(f"{n}.jpg", f"p{n // 3}", "mug") for n in range(30)]
    assert choose(pictures, 30) == list(range(30))
    assert choose(pictures, 15) == [n for n in range(30) if n // 3 % 2 == 0]
