"""Small models, trainers and callbacks that many tests share."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import Callback, Config, ModelDict, Trainer
from prototrain.cli import main
from prototrain.towers import components
from prototrain.trainers.tower import SimpleTrainer, TowerTrainer


def tiny_config(**more: Any) -> Config:
    """A config for 20 steps of a tiny classifier; in keys, ``__`` stands for a dot."""
    values: dict[str, Any] = {
        "trainer.experiment_name": "tiny",
        "model.batch_size": 8,
        "model.num_steps": 20,
        "model.optimizer.method": "adam",
        "model.lr_schedule.method": "constant",
        "model.lr_schedule.constant.value": 0.01,
    }
    values.update({key.replace("__", "."): value for key, value in more.items()})
    return Config(values)


def tiny_arrays(examples: int = 40) -> dict[str, np.ndarray[Any, Any]]:
    """Points in the plane, labelled by their side of a line."""
    points = np.random.default_rng(3).normal(size=(examples, 4)).astype(np.float32)
    return {"x": points, "y": (points[:, 0] > points[:, 1]).astype(np.int32)}


def tiny_datasets(batch_size: int = 8) -> dict[str, tf.data.Dataset]:
    """Five shuffled batches for training, three (the last one short) for validation."""
    trn = tf.data.Dataset.from_tensor_slices(tiny_arrays()).shuffle(40).batch(batch_size)
    vld = tf.data.Dataset.from_tensor_slices(tiny_arrays(20)).batch(batch_size)
    return {"trn": trn, "vld": vld}


def tiny_build(inputs: Mapping[str, tf.Tensor], train_phase: bool) -> ModelDict:
    """A layer with batch normalization and dropout, which have hidden state."""
    net = ModelDict()
    net.x = inputs["x"]
    net.fc0 = keras.layers.Dense(6, activation="relu", name="fc0")(net.last)
    net.bn0 = keras.layers.BatchNormalization(name="bn0")(net.last, training=train_phase)
    net.dropout = keras.layers.Dropout(0.2, name="dropout")(net.last, training=train_phase)
    net.logits = keras.layers.Dense(2, name="logits")(net.last)
    if "y" in inputs:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=inputs["y"], logits=net.logits)
        net.loss = tf.reduce_mean(losses)
        correct = tf.equal(tf.argmax(net.logits, 1, output_type=tf.int32), inputs["y"])
        net.accuracy = tf.reduce_mean(tf.cast(correct, tf.float32))
    return net


def classifier(network: Callable[[Any, bool], Any]) -> Callable[[Mapping[str, Any], bool], ModelDict]:
    """A `build` around a function from x [batch, 4] and the train phase to logits [batch, 2]."""

    def build(inputs: Mapping[str, Any], train_phase: bool) -> ModelDict:
        net = ModelDict(logits=network(inputs["x"], train_phase))
        if "y" in inputs:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=inputs["y"], logits=net.logits)
            net.loss = tf.reduce_mean(losses)
        return net

    return build


def tiny_model(*, build: Any = tiny_build, datasets: Any = tiny_datasets, **config: Any) -> SimpleNamespace:
    """A model object; further keywords are config keys, in which ``__`` stands for a dot."""
    return SimpleNamespace(config=tiny_config(**config), datasets=datasets, build=build, name="tiny")


def tiny_trainer(experiment: Path | None = None, **model: Any) -> SimpleTrainer:
    """A trainer of a tiny model."""
    return SimpleTrainer(tiny_model(**model), experiment=experiment)


class CountingTrainer(Trainer):
    """A trainer without TensorFlow: each step adds its number to a saved total."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.state["total"] = 0

    def run_step(self) -> dict[str, float]:
        self.state["total"] += self.global_step + 1
        return {"loss": 1.0 / (self.global_step + 1)}


class Recorder(Callback):
    """Records every call of a hook as (hook, step)."""

    def __init__(self, calls: list[tuple[str, int]] | None = None) -> None:
        self.calls = [] if calls is None else calls

    def _note(self, hook: str) -> None:
        self.calls.append((hook, self.trainer.global_step))

    def steps(self, hook: str) -> list[int]:
        """The steps at which a hook was called."""
        return [step for name, step in self.calls if name == hook]


for _hook in ("setup", "before_train", "after_train", "before_epoch", "after_epoch", "trigger_epoch", "trigger"):
    setattr(Recorder, _hook, lambda self, hook=_hook: self._note(hook))


class At(Callback):
    """Does something after one step."""

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        self.step, self.action = step, action

    def next_step(self, step: int) -> int | None:
        return self.step if step < self.step else None

    def trigger_step(self) -> None:
        self.action()


def raising(error: BaseException) -> Callable[[], None]:
    """A function that raises an error."""

    def act() -> None:
        raise error

    return act


def failing(hook: str, step: int, error: BaseException | None) -> Callback:
    """A callback that raises in one of its hooks at a step, or asks for a stop as a signal does."""

    class Fails(Callback):
        pass

    def fail(self: Callback, *outputs: Any) -> None:
        if self.trainer.global_step == step:
            if error is not None:
                raise error
            self.trainer.stop.request(signal.SIGINT)

    setattr(Fails, hook, fail)
    return Fails()


class PressesCtrlC(Callback):
    """Presses Ctrl-C when the next step is about to begin, outside of callbacks."""

    def __init__(self, step: int) -> None:
        self.step = step

    def next_step(self, step: int) -> int | None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGINT)
        return self.step if step < self.step else None


class Records(Callback):
    """Keeps what a function of the trainer returns after each step; makes each compiled call one step long."""

    def __init__(self, get: Callable[[Any], Any]) -> None:
        self.get = get
        self.by_step: dict[int, Any] = {}

    def trigger_step(self) -> None:
        self.by_step[self.trainer.global_step] = self.get(self.trainer)


class Losses(Records):
    """Keeps the loss, or another scalar, of every step."""

    def __init__(self, scalar: str = "loss") -> None:
        super().__init__(lambda trainer: trainer.outputs[scalar])


def rows(directory: str | Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl, without times."""
    lines = (Path(directory) / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "time"} for line in lines]


def fails(capture: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Run a command that must end with exit code 1 and an error of one line, and return this line."""
    assert main([str(argument) for argument in arguments]) == 1
    said = capture.readouterr().err
    assert said.startswith("prototrain: error: ") and said.count("\n") == 1, said
    return said


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that imports prototrain and the tests from the repository."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), **more}


def weights(trainer: TowerTrainer) -> dict[str, Any]:
    """The values of the model's variables."""
    return {name: np.array(tf.convert_to_tensor(variable)) for name, variable in trainer.variables.items()}


def saved_variables(trainer: TowerTrainer) -> dict[str, Any]:
    """The variables that a checkpoint of the trainer holds."""
    kinds = (tf.Variable, keras.Variable)
    return {name: entry for name, entry in trainer.state.items() if isinstance(entry, kinds)}


def values(trainer: TowerTrainer) -> dict[str, bytes]:
    """The bits of every variable that a checkpoint of the trainer holds."""
    variables = saved_variables(trainer)
    return {name: np.asarray(tf.convert_to_tensor(variable)).tobytes() for name, variable in variables.items()}


def values_of_towers(trainer: TowerTrainer) -> dict[str, list[bytes]]:
    """The bits of every tower's copy of every variable that a checkpoint of the trainer holds."""
    variables = saved_variables(trainer)
    return {name: [np.asarray(copy).tobytes() for copy in components(entry)] for name, entry in variables.items()}
