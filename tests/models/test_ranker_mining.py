from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from models.ranker.mining import mine
from prototrain import ModelDict
from prototrain.trainers.replicated import SyncReplicatedTrainer
from prototrain.trainers.tower import SimpleTrainer
from tests.tiny import Losses, tiny_model

PAIRS, UNITS, MARGIN = 8, 4, 0.2
PRODUCTS = np.array([0, 1, 2, 0, 3, 1, 4, 5], np.int32)  # some examples twice, in one tower or in two


def _embeddings(seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(2, PAIRS, UNITS)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=2, keepdims=True)


@pytest.mark.parametrize("seed", range(2))
def test_mining_equals_a_plain_loop(seed: int) -> None:
    queries, positives = _embeddings(seed)
    found = mine(queries, positives, PRODUCTS)
    candidates, of = np.concatenate([queries, positives]), np.tile(PRODUCTS, 2)
    losses, hard = [], 0
    for number, query in enumerate(queries):
        others = {row: query @ candidates[row] for row in range(2 * PAIRS) if of[row] != PRODUCTS[number]}
        hardest = max(others, key=lambda row: others[row])
        assert int(found.hardest[number]) == hardest
        assert float(found.negative[number]) == pytest.approx(others[hardest], abs=1e-6)
        excess = others[hardest] - query @ positives[number] + MARGIN
        losses.append(max(excess, 0.0))
        hard += excess > MARGIN
    scalars = {name: float(value) for name, value in found.scalars(MARGIN).items()}
    assert scalars["loss"] == pytest.approx(np.mean(losses), abs=1e-6)
    assert scalars["fraction_hard"] == hard / PAIRS
    assert scalars["fraction_not_satisfied"] == np.mean(np.array(losses) > 0)
    assert scalars["anchor-negative"] == pytest.approx(float(tf.reduce_mean(found.negative)), abs=1e-6)
    assert scalars["anchor-positive"] == pytest.approx(np.mean(np.sum(queries * positives, 1)), abs=1e-6)


def test_batch_of_one_product_has_no_gradient() -> None:
    queries, positives = (tf.Variable(part) for part in _embeddings(0))
    with tf.GradientTape() as tape:
        scalars = mine(queries, positives, np.zeros(PAIRS, np.int32)).scalars(MARGIN)
    assert {name: float(scalars[name]) for name in ("loss", "fraction_hard", "anchor-negative")} == {
        "loss": 0.0, "fraction_hard": 0.0, "anchor-negative": 0.0}  # fmt: skip
    for gradient in tape.gradient(scalars["loss"], [queries, positives]):
        np.testing.assert_array_equal(gradient, 0.0)


def _model(mining: str, *, accumulate: int = 1) -> Any:
    """A linear embedding of fixed random vectors; only the mining uses several examples."""
    random = np.random.default_rng(5)
    arrays = {
        "query": random.normal(size=(PAIRS * 3, 6)).astype(np.float32),
        "positive": random.normal(size=(PAIRS * 3, 6)).astype(np.float32),
        "product": np.tile(PRODUCTS, 3),
    }

    def build(inputs: Mapping[str, tf.Tensor], train_phase: bool) -> ModelDict:
        net = ModelDict()
        both = tf.concat([inputs["query"], inputs["positive"]], 0)
        reduced = keras.layers.Dense(UNITS, name="reduction", kernel_initializer=keras.initializers.GlorotUniform(3))
        queries, positives = tf.split(tf.math.l2_normalize(reduced(both), axis=1), 2)
        found = mine(queries, positives, inputs["product"], over_all_towers=mining == "global")
        net.update(found.scalars(MARGIN))
        return net

    def datasets() -> dict[str, tf.data.Dataset]:
        return {"trn": tf.data.Dataset.from_tensor_slices(arrays).batch(PAIRS)}

    keys = {"model__lr_schedule__constant__value": 0.3, "model__accumulate_steps": accumulate}
    return tiny_model(build=build, datasets=datasets, model__optimizer__method="sgd", **keys)


def _train(trainer: Any) -> tuple[list[float], dict[str, Any]]:
    losses = Losses()
    trainer.train([losses], max_steps=3)
    return list(losses.by_step.values()), {name: v.numpy() for name, v in trainer.variables.items()}


def test_loss_and_updates_do_not_depend_on_towers() -> None:
    losses, weights = _train(SimpleTrainer(_model("global")))
    of_towers, weights_of_towers = _train(SyncReplicatedTrainer(_model("global"), "cpu:2"))
    assert losses[0] > 0.1
    np.testing.assert_allclose(of_towers, losses, rtol=1e-5)
    for name, value in weights.items():
        np.testing.assert_allclose(weights_of_towers[name], value, rtol=1e-5, atol=1e-6)


def test_mining_within_one_tower() -> None:
    """Each tower mines within its part of the batch, like a micro-batch."""
    parts, weights = _train(SimpleTrainer(_model("global", accumulate=2)))
    of_towers, weights_of_towers = _train(SyncReplicatedTrainer(_model("tower"), "cpu:2"))
    np.testing.assert_allclose(of_towers, parts, rtol=1e-5)
    np.testing.assert_allclose(weights_of_towers["reduction/kernel"], weights["reduction/kernel"], rtol=1e-5, atol=1e-6)
    assert abs(parts[0] - _train(SimpleTrainer(_model("global")))[0][0]) > 1e-3
