"""Updates have the right values, and settings have an effect or are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import KerasTrainer, SimpleTrainer, SyncReplicatedTrainer
from prototrain.callbacks import GradientNorm, SaveOnExit, ScheduledHyperParamSetter, StopOnNaN
from prototrain.errors import ConfigError, ModelError, StepError
from prototrain.gradient_processors import ClipByValue, SummaryGradient
from prototrain.launch import default_callbacks
from prototrain.trainers.async_towers import AsyncTrainer
from prototrain.trainers.tower import TowerTrainer
from tests.tiny import tiny_model, weights

RATE = 0.1


def model(build: Any, batch: dict[str, Any], method: Any, **more: Any) -> Any:
    """A model that is trained with one batch of four examples."""

    def datasets() -> dict[str, tf.data.Dataset]:
        return {"trn": tf.data.Dataset.from_tensors(batch).repeat()}

    keys = {"model__batch_size": 4, "model__num_steps": 1, "model__lr_schedule__constant__value": RATE, **more}
    return tiny_model(build=build, datasets=datasets, model__optimizer__method=method, **keys)


def rows(method: Any, **more: Any) -> Any:
    """The loss is the sum of one row of an embedding, taken four times."""

    def build(inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
        rows = keras.layers.Embedding(3, 1, name="rows", embeddings_initializer="ones")(inputs["ids"])
        return {"loss": tf.reduce_sum(rows)}

    return model(build, {"ids": np.zeros(4, np.int32)}, method, **more)


def line(method: Any = lambda: keras.optimizers.SGD(RATE), **more: Any) -> Any:
    """Learns y = 2 x from four points."""

    def build(inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
        layer = keras.layers.Dense(1, name="line", kernel_initializer="zeros", use_bias=False)
        guess = tf.cast(layer(inputs["x"]), tf.float32)
        return {"loss": tf.reduce_mean((guess - inputs["y"]) ** 2)}

    x = np.ones([4, 1], np.float32)
    return model(build, {"x": x, "y": 2 * x}, method, **more)


def weight(trainer: Any) -> float:
    return float(tf.reshape(tf.convert_to_tensor(next(iter(trainer.variables.values()))), [-1])[0])


def two_towers(model: Any, **options: Any) -> Any:
    return SyncReplicatedTrainer(model, towers="cpu:2", **options)


@pytest.mark.parametrize(
    ("make", "keys", "optimizer"),
    [
        (SimpleTrainer, {}, keras.optimizers.RMSprop),
        (SimpleTrainer, {"model__accumulate_steps": 2}, keras.optimizers.Adagrad),
        (two_towers, {}, keras.optimizers.Adam),
        (lambda model: AsyncTrainer(model, towers="cpu:1"), {}, keras.optimizers.Adam),
    ],
)
def test_duplicate_rows_are_summed(optimizer: Any, make: Any, keys: dict[str, Any]) -> None:
    parts = 2 if keys.get("model__accumulate_steps") or make is two_towers else 1
    trainer = make(rows(lambda: optimizer(RATE), **keys))
    trainer.train(max_steps=1)
    dense, expected = tf.constant([[4.0 / parts], [0.0], [0.0]]), keras.Variable(np.ones([3, 1]))
    optimizer(RATE).apply([dense], [expected])
    assert weight(trainer) == pytest.approx(float(expected.numpy()[0, 0]), abs=1e-6)


class OwnStep(keras.Sequential):  # type: ignore[misc]
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def test_duplicate_rows_of_a_keras_model_are_summed() -> None:
    layer = keras.layers.Embedding(1, 1, embeddings_initializer="ones")
    model = OwnStep([keras.Input([], dtype="int32"), layer])
    model.compile(keras.optimizers.Adam(RATE), lambda y, guess: tf.reduce_sum(guess))
    KerasTrainer(model, (np.zeros(4, np.int32), np.zeros(4, np.float32)), batch_size=4).fit(epochs=1, verbose=0)
    assert float(layer.embeddings.numpy()[0, 0]) == pytest.approx(0.9, abs=1e-5)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: keras.optimizers.SGD(RATE, loss_scale_factor=128.0), "SGD: a loss scale .* mixed_float16"),
        (
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE)),
            "LossScaleOptimizer: .* fit only",
        ),
        (lambda: keras.optimizers.Adam(RATE, use_ema=True), "use_ema .* ExponentialMovingAverage"),
    ],
)
def test_settings_of_fit_are_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SimpleTrainer(line(make))


@pytest.mark.parametrize("make", [SimpleTrainer, two_towers])
def test_variables_excluded_from_weight_decay(make: Any) -> None:
    def method() -> Any:
        optimizer = keras.optimizers.SGD(RATE, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_names=["rows"])
        return optimizer

    trainer = make(rows(method))
    trainer.train(max_steps=1)
    assert weight(trainer) == pytest.approx(1 - RATE * (2.0 if make is two_towers else 4.0))


class SignTrainer(SimpleTrainer):
    decays = False

    def train_step(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
        variables = list(self.trainable.values())
        with tf.GradientTape() as tape:
            loss = self.build(inputs, True)["loss"] + (self.weight_decay_loss() if self.decays else 0.0)
        self.apply_gradients(list(zip(self.gradients(tape, loss, variables), variables, strict=True)), loss=loss)
        return {"loss": loss}


class DecayTrainer(SignTrainer):
    decays = True


class PythonTrainer(SimpleTrainer):
    def run_step(self) -> dict[str, Any]:
        return {"loss": 1.0}


@pytest.mark.parametrize(
    ("trainer", "keys", "named"),
    [
        (SignTrainer, {"model.weight_decay.value": 10.0}, ["model.weight_decay.value"]),
        (SignTrainer, {"model.accumulate_steps": 2}, ["model.accumulate_steps"]),
        (SignTrainer, {"model.jit_compile": True}, ["model.jit_compile"]),
        (SignTrainer, {"model.clip_gradients.global_norm": 1.0}, []),
        (DecayTrainer, {"model.weight_decay.value": 10.0}, []),
        (SimpleTrainer, {"model.weight_decay.l1": 1.0, "model.accumulate_steps": 2}, []),
        (PythonTrainer, {"model.clip_gradients.global_norm": 1.0}, ["model.clip_gradients.global_norm"]),
    ],
)
def test_unused_keys_are_named(
    trainer: Any, keys: dict[str, Any], named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    trainer(line(**keys)).train(max_steps=2)
    out = capsys.readouterr().out
    assert [key for key in keys if f"WARNING: {key} has no effect" in out] == named


def test_processors_and_norm_that_nothing_applies_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for make in (PythonTrainer, SignTrainer):
        trainer = make(line())
        trainer.gradient_processors.append(ClipByValue(-1.0, 1.0))
        trainer.train([GradientNorm()], max_steps=2)
    found = re.findall("WARNING: no effect of (.*):", capsys.readouterr().out)
    assert found == ["ClipByValue, GradientNorm"]


class EagerTrainer(SimpleTrainer):
    def run_step(self) -> dict[str, Any]:
        variables = list(self.trainable.values())
        with tf.GradientTape() as tape:
            loss = self.build(self.next_batch(), True)["loss"]
        self.apply_gradients(list(zip(self.gradients(tape, loss, variables), variables, strict=True)), loss=loss)
        return {"loss": loss}


def test_recording_in_a_python_step_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = EagerTrainer(line())
    trainer.gradient_processors.append(SummaryGradient())
    trainer.train([GradientNorm()], max_steps=2)
    said = capsys.readouterr().out
    assert said.count("WARNING") == said.count("no effect of SummaryGradient, GradientNorm: run_step() runs in") == 1


def test_processor_that_returns_nothing() -> None:
    trainer = SimpleTrainer(line())
    trainer.gradient_processors.append(lambda pairs: None)
    with pytest.raises(ModelError, match="returned None"):
        trainer.train(max_steps=1)


def test_keys_like_those_of_the_engine_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    SimpleTrainer(line(**{"model.acumulate_steps": 2, "model.own_size": 3})).train(max_steps=1)
    out = capsys.readouterr().out
    assert "model.acumulate_steps has no effect" in out and "'model.accumulate_steps'" in out and "own_size" not in out


def test_loss_scale_of_an_own_train_step_is_reported() -> None:
    trainer = SignTrainer(line(**{"model.mixed_precision": "mixed_float16"}))
    trainer.train(max_steps=1)
    assert trainer.outputs["loss_scale"] in (2.0**14, 2.0**15)


def test_warmup_without_its_callback_is_an_error() -> None:
    keys = {"model.lr_schedule.warmup_steps": 3, "model.optimizer.method": "sgd"}
    with pytest.raises(ConfigError, match="would stay at 0; add LearningRate"):
        SimpleTrainer(line(**keys)).train(max_steps=2)


@pytest.mark.parametrize("make", [SimpleTrainer, two_towers])
def test_weights_are_loaded_only_at_a_fresh_start(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    np.savez(path, **{name: np.full([1, 1], 7.0, np.float32) for name in SimpleTrainer(line()).variables})

    def run(steps: int) -> float:
        trainer = make(line(model__weights_load_path=str(path)), experiment=tmp_path / "run")
        trainer.train([*default_callbacks(trainer.model), SaveOnExit()], max_steps=steps)
        return weight(trainer)

    assert [run(1), run(2)] == pytest.approx([7 - RATE * 2 * 5, 6 - RATE * 2 * 4])


class Sometimes(TowerTrainer):
    """Updates in every third step; the loss is not finite in the others if `spoilt`."""

    spoilt = False
    inside = False
    firsts = 0

    def train_step(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
        variables = list(self.trainable.values())
        wanted = tf.equal(self.global_step % 3, 0)
        with tf.GradientTape() as tape:
            loss = self.build(inputs, True)["loss"]
        gradients = self.gradients(tape, loss, variables)
        if self.spoilt:
            gradients = [tf.where(wanted, gradient, np.nan) for gradient in gradients]
        pairs = list(zip(gradients, variables, strict=True))
        if self.inside:
            tf.cond(wanted, lambda: self.apply_gradients(pairs, loss=loss), lambda: None)
        else:
            self.apply_gradients(pairs, loss=loss, when=wanted)
        return {"loss": loss}


class SometimesOnOne(Sometimes, SimpleTrainer):
    pass


class SometimesOnTwo(Sometimes, SyncReplicatedTrainer):
    def __init__(self, model: Any) -> None:
        super().__init__(model, towers="cpu:2")


@pytest.mark.parametrize("trainer", [SometimesOnOne, SometimesOnTwo])
class TestUpdatesInSomeSteps:
    @pytest.mark.parametrize(("spoilt", "precision"), [(False, None), (True, "mixed_float16")])
    def test_the_value_is_that_of_the_updates_made(self, trainer: Any, spoilt: bool, precision: str | None) -> None:
        made = trainer(line(model__mixed_precision=precision))
        made.spoilt = spoilt
        if made.loss_scale is not None:
            made.loss_scale.scale.assign(8.0)  # no gradient overflows
        made.train([StopOnNaN()] if spoilt else [], max_steps=7)  # updates in 0, 3 and 6
        expected = 0.0
        for _ in range(3):
            expected -= RATE * 2 * (expected - 2)
        assert weight(made) == pytest.approx(expected, abs=1e-2 if precision else 1e-6)
        assert int(tf.convert_to_tensor(made.optimizer.iterations)) == 3

    def test_inside_of_a_branch_it_is_an_error(self, trainer: Any) -> None:
        made = trainer(line())
        made.inside = True
        with pytest.raises(ModelError, match=r"inside a tf.cond.*when="):
            made.train(max_steps=1)


def test_condition_that_differs_between_towers_is_an_error() -> None:
    class ByLoss(SometimesOnTwo):
        def train_step(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
            variables = list(self.trainable.values())
            with tf.GradientTape() as tape:
                loss = self.build(inputs, True)["loss"]
            pairs = list(zip(self.gradients(tape, loss, variables), variables, strict=True))
            index = tf.distribute.get_replica_context().replica_id_in_sync_group
            self.apply_gradients(pairs, loss=loss, when=index < self.firsts)
            return {"loss": loss}

    trainer = ByLoss(line())
    trainer.firsts = 2
    trainer.train(max_steps=1)
    trainer = ByLoss(line())
    trainer.firsts = 1
    with pytest.raises(StepError, match="`when` differs between the towers"):
        trainer.train(max_steps=1)


def test_warning_for_an_unused_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    schedule = {"method": "step", "step__boundaries": [1], "step__values": [0.1, 0.01]}
    steps = {f"model__lr_schedule__{key}": value for key, value in schedule.items()}
    own = {"model__optimizer__method": lambda: keras.optimizers.SGD(0.1)}
    setter = ScheduledHyperParamSetter("learning_rate", [(1, 0.1)])
    for change, callbacks, is_said in (
        (steps, [], True),
        ({**steps, **own}, [], True),
        (steps, [setter], False),
        ({}, [], False),
    ):
        SimpleTrainer(tiny_model(**change)).train(callbacks, max_steps=2)
        said = "model.lr_schedule (step) is not followed: the learning rate stays at 0.1"
        assert (said in capsys.readouterr().out) is is_said


def test_weight_decay_and_clipping_with_several_dtypes() -> None:
    def build(inputs: Any, train_phase: bool) -> Any:
        wide = keras.layers.Dense(3, dtype="float64", name="wide")(inputs["x"])
        out = keras.layers.Dense(2, dtype="float32", name="out")(wide)
        return {"loss": tf.reduce_mean(out**2)}

    keys = {
        "model__weight_decay__value": 0.1,
        "model__clip_gradients": True,
        "model__clip_gradients__global_norm": 1e-3,
    }
    trainer = SimpleTrainer(model(build, {"x": np.ones([4, 2])}, lambda: keras.optimizers.SGD(1.0), **keys))
    before = weights(trainer)
    trainer.train(max_steps=1)
    kernels = [value for name, value in before.items() if "kernel" in name]
    assert float(trainer.outputs["loss_l2"]) == pytest.approx(
        0.05 * sum(np.sum(value**2) for value in kernels), rel=1e-5
    )
    moves = [np.sum((value - before[name]) ** 2) for name, value in weights(trainer).items()]
    assert np.sqrt(sum(moves)) == pytest.approx(1e-3 * RATE, rel=1e-3)
