"""models.ranker: exact retrieval in blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.ranker.actions.outcome import KS, Outcome
from models.ranker.actions.retrieval import Retrieved, recall_at, retrieve
from models.ranker.layouts import Picture

K = 50


@pytest.mark.parametrize("block", [7, 1000])
def test_neighbours_and_recall_equal_a_full_sort(block: int) -> None:
    random = np.random.default_rng(1)
    drawn, products = random.normal(size=(120, 6)).astype(np.float32), random.integers(0, 20, 120)
    catalogue = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    found = retrieve(catalogue, k=K, products=products, block=block)
    similarity = catalogue.astype(np.float64) @ catalogue.astype(np.float64).T
    np.fill_diagonal(similarity, -np.inf)  # a query does not find itself
    exact = np.argsort(-similarity, axis=1)[:, :K]
    np.testing.assert_array_equal(found.indices, exact)
    right = products[exact] == products[:, None]
    np.testing.assert_array_equal(found.right, right)
    assert recall_at(KS, found.right) == [right[:, :k].any(axis=1).mean() for k in KS]
    np.testing.assert_allclose(found.similarities, np.take_along_axis(similarity, exact, 1), atol=1e-6)


def test_outcome_counts() -> None:
    pictures = [Picture(f"{n}.jpg", f"{kind}1", kind) for n, kind in enumerate(["mug", "mug", "lamp", "lamp"])]
    indices = np.array([[1, 2], [2, 0], [3, 0], [2, 1]])
    right = np.array([[True, False], [False, True], [True, False], [True, False]])
    outcome = Outcome(Path(), pictures, Retrieved(indices, np.ones((4, 2), np.float32), right))
    assert outcome.table() == [["lamp", 2, *[1.0] * 4], ["mug", 2, 0.5, *[1.0] * 3], ["all", 4, 0.75, *[1.0] * 3]]
    assert outcome.summary()["recall@1"] == 0.75 and outcome.summary()["classes"]["mug"]["recall@1"] == 0.5
    assert outcome.retrieved_for(3, 1) == [(pictures[2], 1.0, True)]
