"""What a traced step does not repeat after a resume is seen in its graph, and nothing else is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from prototrain import Callback, SimpleTrainer
from prototrain.callbacks import (
    EnableCallbackIf,
    ExponentialMovingAverage,
    SaveOnExit,
    StopOnNaN,
    Summaries,
    Validation,
)
from prototrain.step.eager_caveats import saved_handles
from prototrain.step.graph_caveats import graph_caveats, resource_caveats
from tests.tiny import Losses, tiny_build, tiny_model

generator = tf.random.Generator.from_seed(3)
unsaved = tf.Variable(1.0, name="unsaved")

INEXACT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "normal": (lambda x: x + tf.random.normal([2]), "draws from tf.random.normal .*test_graph_caveats.py, line"),
    "uniform": (lambda x: x + tf.random.uniform([2]), "draws from tf.random.uniform"),
    "dropout": (lambda x: tf.nn.dropout(x, 0.5), "draws from tf.nn.dropout"),
    "shuffle": (lambda x: tf.random.shuffle(x), "draws from tf.random.shuffle"),
    "in a branch": (
        lambda x: tf.cond(x[0] > 0, lambda: x + tf.random.normal([2]), lambda: x),
        "draws from tf.random.normal",
    ),
    "in a loop": (
        lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y + tf.random.normal([2])), (0, x))[1],
        "draws from tf.random.normal",
    ),
    "in a map": (lambda x: tf.map_fn(lambda y: y + tf.random.normal([]), x), "draws from tf.random.normal"),
    "python": (lambda x: tf.numpy_function(lambda y: y, [x], tf.float32), "calls Python code"),
    "py_function": (lambda x: tf.py_function(lambda y: y, [x], tf.float32), "calls Python code"),
    "generator": (lambda x: x + generator.normal([2]), "uses the variable 'StateVar'"),
    "variable": (lambda x: x * unsaved, "uses the variable 'unsaved'"),
    "the time": (lambda x: x + tf.cast(tf.timestamp(), tf.float32), "asks for the time .*test_graph_caveats.py, line"),
    "candidates": (
        lambda x: tf.cast(tf.random.uniform_candidate_sampler([[1]], 1, 1, True, 5)[0], tf.float32),
        "has the op UniformCandidateSampler",
    ),
}
EXACT: dict[str, Callable[[Any], Any]] = {
    "stateless": lambda x: x + tf.random.stateless_normal([2], [1, 2]),
    "loop": lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y * 2), (0, x))[1],
    "map": lambda x: tf.map_fn(lambda y: y * 2, x),
    "python without a state": lambda x: tf.numpy_function(lambda y: y, [x], tf.float32, stateful=False),
    "check": lambda x: tf.debugging.check_numerics(x, "x"),
}


constant = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0], [1.0]), 0.0)
changing = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
numbers = iter(tf.data.Dataset.range(9).repeat())


def first_of_a_loop(x: Any) -> Any:
    def add(i: Any, y: Any) -> Any:
        return i + 1, y + tf.cast(next(numbers), tf.float32)

    return tf.while_loop(lambda i, _: i < 2, add, (0, x))[1]


RESOURCES: dict[str, tuple[Callable[[Any], Any], Any, str | None]] = {
    "a table": (lambda x: constant.lookup(tf.cast(x, tf.int32)), constant, None),
    "a table that can change": (
        lambda x: changing.lookup(tf.cast(x, tf.int64)),
        changing,
        "uses a table that can change",
    ),
    "a table that is changed": (
        lambda x: (changing.insert(tf.cast(x, tf.int64), x), x)[1],
        changing,
        "uses a table that can change",
    ),
    "an iterator": (lambda x: x + tf.cast(next(numbers), tf.float32), numbers, "reads an iterator"),
    "an iterator in a loop": (first_of_a_loop, numbers, "reads an iterator"),
    "an iterator in a branch": (
        lambda x: tf.cond(x[0] > 0, lambda: x + tf.cast(next(numbers), tf.float32), lambda: x),
        numbers,
        "reads an iterator",
    ),
}


@pytest.mark.parametrize("name", RESOURCES)
def test_what_is_neither_a_variable_nor_saved_is_named(name: str) -> None:
    function, resource, words = RESOURCES[name]
    graph = traced(function)
    assert graph_caveats(graph, []) == []
    found = resource_caveats(graph)
    if words is None:
        assert found == []
        return
    ((handle, said),) = found
    assert re.search(words + r" \(.*test_graph_caveats.py, line \d+\) that no checkpoint holds", said)
    assert handle in [each for each in saved_handles([resource]) if each is handle]


class Reads(SimpleTrainer):
    def train_step(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return super().train_step({**inputs, "x": inputs["x"] + tf.cast(next(numbers), tf.float32)})


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_second_iterator_repeats_if_it_is_saved(
    is_saved: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for steps in (3, 6):
        trainer = Reads(tiny_model(), experiment=tmp_path)
        if is_saved:
            trainer.state["numbers"] = numbers
        trainer.train([SaveOnExit()], max_steps=steps)
    assert ("the step reads an iterator" in capsys.readouterr().out) == (not is_saved)
    assert ("not bit-exact" in trainer.session.resume_line()) == (not is_saved)


def test_an_iterator_of_the_model_is_named_from_the_first_run_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(inputs: Any, train_phase: bool) -> Any:
        return tiny_build({**inputs, "x": inputs["x"] + tf.cast(next(numbers), tf.float32)}, train_phase)

    for steps, line in (
        (2, "steps on resume  not exact: the step reads an iterator"),
        (4, "not bit-exact, because the"),
    ):
        SimpleTrainer(tiny_model(build=build), experiment=tmp_path).train([SaveOnExit()], max_steps=steps)
        assert line in capsys.readouterr().out


def test_a_validation_that_draws_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def build(inputs: Any, train_phase: bool) -> Any:
        noise = 0.0 if train_phase else tf.random.normal([])
        return tiny_build({**inputs, "x": inputs["x"] + noise}, train_phase)

    SimpleTrainer(tiny_model(build=build), experiment=tmp_path).train([Validation()], max_steps=2)
    assert "will not be bit-exact, because the validation draws from tf.random.normal" in capsys.readouterr().out


def traced(function: Callable[[Any], Any]) -> Any:
    return tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec([2])).graph


@pytest.mark.parametrize("name", INEXACT)
def test_what_does_not_repeat_is_named(name: str) -> None:
    function, words = INEXACT[name]
    (said,) = graph_caveats(traced(function), [])
    assert re.search(words, said)


@pytest.mark.parametrize("name", EXACT)
def test_what_repeats_is_not_named(name: str) -> None:
    assert graph_caveats(traced(EXACT[name]), []) == []


@pytest.mark.parametrize("variable", [generator.state, unsaved], ids=["generator", "variable"])
def test_what_a_checkpoint_holds_repeats(variable: Any) -> None:
    function = INEXACT["generator" if variable is generator.state else "variable"][0]
    assert graph_caveats(traced(function), [variable]) == []


class DrawsAfterEachStep(Callback):
    def setup(self) -> None:
        self.noise = self.trainer.state["noise"] = tf.Variable(0.0)

    def after_run(self, outputs: dict[str, Any]) -> None:
        self.noise.assign(tf.random.normal([]))


class Noisy(SimpleTrainer):
    def train_step(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return super().train_step({**inputs, "x": inputs["x"] + tf.random.normal([4])})


@pytest.mark.parametrize(
    ("trainer", "callback"), [(SimpleTrainer, DrawsAfterEachStep), (Noisy, Losses)], ids=["hook", "train_step"]
)
def test_what_only_the_whole_step_shows_is_said_once_it_is_traced(
    trainer: type[SimpleTrainer], callback: type[Callback], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer(tiny_model(), experiment=tmp_path).train([callback(), SaveOnExit()], max_steps=3)
    assert "a run that goes on from this one will not be bit-exact, because the step draws" in capsys.readouterr().out
    if trainer is Noisy:
        return  # what follows does not depend on where it was seen
    second = trainer(tiny_model(), experiment=tmp_path)
    second.train([callback(), SaveOnExit()], max_steps=6)
    assert "resumed at step 3, not bit-exact, because the step draws from tf.random.normal" in capsys.readouterr().out
    assert "not bit-exact" in second.session.resume_line()
    assert "not bit-exact" in (tmp_path / "run.json").read_text()


def test_all_of_the_engines_own_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    callbacks = [
        EnableCallbackIf(Summaries(), lambda trainer: True),
        ExponentialMovingAverage(0.9),
        StopOnNaN(),
        Summaries().every(steps=2),
    ]
    trainer = SimpleTrainer(tiny_model(model__mixed_precision="mixed_float16"))
    trainer.train(callbacks, max_steps=4)
    assert trainer.built.graph_caveats == [] and "bit-exact" not in capsys.readouterr().out


def sampling(inputs: Any, train_phase: bool) -> Any:
    noise = tf.random.normal(tf.shape(inputs["x"]))  # as the Sampling layer of every variational autoencoder
    return tiny_build({**inputs, "x": inputs["x"] + noise}, train_phase)


def test_a_model_that_draws_says_so_before_its_first_step(tmp_path: Path) -> None:
    trainer = SimpleTrainer(tiny_model(build=sampling), experiment=tmp_path)
    assert "draws from tf.random.normal" in trainer.describe()["steps on resume"]
    trainer.train([SaveOnExit()], max_steps=3)
    second = SimpleTrainer(tiny_model(build=sampling), experiment=tmp_path)
    second.train([SaveOnExit()], max_steps=4)
    assert "because the step draws from tf.random.normal" in second.session.resume_line()


def test_keras_layers_that_draw_are_exact() -> None:
    def build(inputs: Any, train_phase: bool) -> Any:
        x = keras.layers.GaussianNoise(0.1, name="noise")(inputs["x"], training=train_phase)
        return tiny_build({**inputs, "x": keras.layers.Dropout(0.3, name="drop")(x, training=train_phase)}, train_phase)

    assert SimpleTrainer(tiny_model(build=build)).built.graph_caveats == []


@pytest.mark.parametrize("kind", ["variable", "seed generator", "layer", "module"])
def test_whatever_the_state_holds_is_in_checkpoints(kind: str, tmp_path: Path) -> None:
    seeds, variable, layer = keras.random.SeedGenerator(9), tf.Variable(0.1), keras.layers.Dense(1)
    layer.build((None, 4))
    module = tf.Module()
    module.inside = tf.Variable(0.2)
    held, value = {
        "variable": (variable, lambda: variable),
        "seed generator": (seeds, lambda: keras.random.normal((), seed=seeds)),
        "layer": (layer, lambda: layer.kernel[0, 0] * 1.0),
        "module": (module, lambda: module.inside),
    }[kind]

    class Own(SimpleTrainer):
        """Uses more than its model's variables."""

        def create_optimizers(self) -> None:
            super().create_optimizers()
            self.state["more"] = held

        def train_step(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
            return {**super().train_step(inputs), "more": tf.convert_to_tensor(value())}

    trainer = Own(tiny_model(), experiment=tmp_path / "run")
    trainer.train([SaveOnExit()], max_steps=2)
    assert trainer.session.resume.caveats == []
