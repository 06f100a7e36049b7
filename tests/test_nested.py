from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import Callback, SimpleTrainer, SyncReplicatedTrainer
from prototrain.actions.saved_model import ServedModel
from prototrain.callbacks import (
    DumpTensors,
    InferenceRunner,
    JSONWriter,
    ModelSaver,
    ScalarStats,
    Summaries,
    Validation,
)
from prototrain.errors import ModelError
from prototrain.model.built import BuiltModel
from tests.tiny import Losses, tiny_model, values

NUMBERS = np.random.default_rng(5).normal(size=(40, 3)).astype(np.float32)


def nested() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(
        {"user": {"age": NUMBERS[:, :1], "pair": (NUMBERS, np.arange(40))}, "y": NUMBERS.sum(1, keepdims=True)}
    )


def datasets() -> dict[str, tf.data.Dataset]:
    return {"trn": nested().shuffle(40).batch(8), "vld": nested().batch(16)}


def generated() -> dict[str, tf.data.Dataset]:
    spec = nested().element_spec
    return {"trn": tf.data.Dataset.from_generator(lambda: nested().as_numpy_iterator(), output_signature=spec).batch(8)}


def flat() -> dict[str, tf.data.Dataset]:
    def flatten(batch: Any) -> dict[str, Any]:
        return {"age": batch["user"]["age"], "pair": batch["user"]["pair"][0], "y": batch["y"]}

    return {name: dataset.map(flatten) for name, dataset in datasets().items()}


def network(age: Any, pair: Any, more: Any) -> dict[str, Any]:
    guess = keras.layers.Dense(1, name="guess")(tf.concat([age, pair], 1))
    return {"guess": guess} | ({"loss": tf.reduce_mean((guess - more["y"]) ** 2)} if "y" in more else {})


def build(inputs: Any, train_phase: bool) -> dict[str, Any]:
    user = inputs["user"]
    tf.summary.histogram("age", user["age"])
    return network(user["age"], user["pair"][0], inputs)


def build_flat(inputs: Any, train_phase: bool) -> dict[str, Any]:
    return network(inputs["age"], inputs["pair"], inputs)


def callbacks() -> list[Callback]:
    measuring = [Validation().every(steps=3), InferenceRunner("vld", ScalarStats("loss"), prefix="run")]
    writing = [Summaries().every(steps=3), JSONWriter(), DumpTensors(["user/age", "guess"]).every(steps=3)]
    return [*measuring, *writing, ModelSaver().every(steps=4)]


def test_nested_equals_flat(tmp_path: Path) -> None:
    trainers = {
        "flat": SimpleTrainer(tiny_model(build=build_flat, datasets=flat)),
        "one": SimpleTrainer(tiny_model(build=build, datasets=datasets), experiment=tmp_path / "one"),
        "half": SimpleTrainer(tiny_model(build=build, datasets=datasets), experiment=tmp_path / "half"),
        "rest": SimpleTrainer(tiny_model(build=build, datasets=datasets), experiment=tmp_path / "half"),
    }
    losses = {name: Losses() for name in trainers}
    for name, trainer in trainers.items():
        of_nested = [] if name == "flat" else callbacks()
        trainer.train([*of_nested, losses[name]], max_steps=4 if name == "half" else 8)
    one = trainers["one"]
    assert losses["one"].by_step == losses["flat"].by_step
    assert losses["half"].by_step | losses["rest"].by_step == losses["one"].by_step
    assert values(trainers["rest"]) == values(one)
    dumped = np.load(tmp_path / "one" / "analysis" / "tensors" / "step-0000000003.npz")
    assert dumped["user/age"].shape == dumped["guess"].shape == (8, 1)

    _predicts(one)
    _is_served(one.built)


def _predicts(trainer: SimpleTrainer) -> None:
    age, pair, number = NUMBERS[:3, :1], NUMBERS[:3], np.arange(3)
    guess = trainer.build({"user": {"age": tf.constant(age), "pair": (tf.constant(pair), number)}}, False)["guess"]
    by_path = trainer.get_predictor(["user/pair/1", "user/age", "user/pair/0"], ["guess"])
    (found,) = by_path(number, age, pair)
    (whole,) = trainer.get_predictor(["user"], ["guess"])({"age": age.tolist(), "pair": (pair, number)})
    (parts,) = trainer.get_predictor(["user/age", "user/pair"], ["guess"])(age, (pair, number))
    assert all(np.allclose(guess, one) for one in (found, whole, parts))
    for names, given, message in [
        (["user/pair/0"], (pair,), "name all elements of the tuple; number '1'"),
        (["user"], ({"age": age, "pair": (pair,)},), "input 'user/pair' must be a structure .* it has no '1'"),
    ]:
        with pytest.raises(ModelError, match=message):
            trainer.get_predictor(names, ["guess"])(*given)


def _is_served(built: BuiltModel) -> None:
    served = ServedModel(built, ["user/age", "user/pair/0", "user/pair/1"], ["guess"])
    assert [*served.cases[0]] == ["user_age", "user_pair_0", "user_pair_1"]
    assert served.results()[0]["serving_default:guess"].shape == (8, 1)


def test_replay_on_towers_with_micro_batches(tmp_path: Path) -> None:
    for steps in (3, 6):
        model = tiny_model(build=build, datasets=generated, model__accumulate_steps=2)
        trainer = SyncReplicatedTrainer(model, "cpu:2", experiment=tmp_path)
        trainer.train([ModelSaver().every(steps=3)], max_steps=steps)
        assert trainer.data.mode == "replay" and trainer.data.caveat is None
    assert trainer.run.start_row().startswith("resumed at step 3")
    plain = SimpleTrainer(tiny_model(build=build, datasets=generated))
    plain.train(max_steps=6)
    assert trainer.outputs["loss"] == pytest.approx(plain.outputs["loss"], rel=1e-5)
