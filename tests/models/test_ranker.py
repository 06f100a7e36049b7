from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from models.ranker.actions.outcome import KS, Outcome
from models.ranker.actions.retrieval import Retrieved, recall_at, retrieve
from models.ranker.layouts import Picture
from prototrain.cli import main
from tests.models.ranker_tree import config, stanford, tiny

__all__ = ["config", "stanford"]


@pytest.fixture(scope="module")
def ran(stanford: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    base = tmp_path_factory.mktemp("run")
    with tiny(base) as settings, pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path(__file__).parents[2])
        settings["data.directory"] = str(stanford)
        assert main(["run", "models.ranker"]) == 0
        assert main(["action", "models.ranker", "models.ranker.actions.evaluate"]) == 0
    directory = base / "experiments" / "ranker"
    return SimpleNamespace(directory=directory, retrieval=directory / "analysis" / "step-0000000004-retrieval")


def test_recorded_scalars(ran: SimpleNamespace) -> None:
    entries = [json.loads(line) for line in (ran.directory / "metrics.jsonl").read_text().splitlines()]
    names = {name for entry in entries for name in entry}
    for name in ("loss", "fraction_not_satisfied", "fraction_hard", "anchor-positive", "anchor-negative"):
        assert {f"trn/{name}", f"vld/{name}"} <= names
    files = map(str, (ran.directory / "summaries").rglob("events.out.tfevents.*"))
    events = [tf.compat.v1.Event.FromString(one.numpy()) for one in tf.data.TFRecordDataset(list(files))]
    *_, (_, _, picture) = [
        value.tensor.string_val
        for event in events
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "images"
    ]
    assert tf.io.decode_png(picture).shape == (8 * 16, 3 * 16, 3)


def test_evaluation_files(ran: SimpleNamespace) -> None:
    assert {path.name for path in ran.retrieval.iterdir()} == {"index.html", "recall.json", "top_retrieved.json"}
    summary = json.loads((ran.retrieval / "recall.json").read_text())
    assert summary["queries"] == 48 and 0.0 <= summary["recall@1"] <= summary["recall@10"] <= 1.0
    assert set(summary["classes"]) == {"lamp", "mug"}
    queries = json.loads((ran.retrieval / "top_retrieved.json").read_text())
    firsts = []
    for query in queries:
        paths = [found["path"] for found in query["retrieved"]]
        assert len(paths) == len(set(paths)) == 10 and query["path"] not in paths
        for found in query["retrieved"]:
            assert found["right"] == (found["product"] == query["product"])
        firsts.append(query["retrieved"][0]["right"])
    assert np.mean(firsts) == summary["recall@1"]


K = 50


@pytest.mark.parametrize("block", [7, 1000])
def test_neighbors_and_recall_equal_a_full_sort(block: int) -> None:
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
