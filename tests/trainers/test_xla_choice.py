from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from prototrain import Config, SimpleTrainer, SyncReplicatedTrainer
from prototrain.callbacks import SaveOnExit, Summaries
from prototrain.errors import ConfigError, StepError
from prototrain.runs.repeat import Repeat
from prototrain.trainers.async_towers import AsyncTrainer
from prototrain.trainers.xla_choice import XlaChoice
from tests.tiny import tiny_build, tiny_model, tiny_trainer, values


class Clock:
    """A clock that stands still, except that each timed form takes the given time."""

    def __init__(self, *seconds: float) -> None:
        each = [pause for taken in seconds for pause in (0.0, taken)]
        # Each form compiles, the length of a call is measured, the budget starts, and the rounds follow.
        self._now, self._pauses = 0.0, itertools.chain([*each, 0.0, 0.01, 0.0], itertools.cycle([*each, 0.0]))

    def __call__(self) -> float:
        self._now += next(self._pauses)
        return self._now


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ((0.004, 0.002), True),
        ((0.002, 0.004), False),
        ((0.1, 0.098), False),
        ((0.004, 0.002, 0.001), "loop"),
        ((0.004, 0.002, 0.003), True),
        ((0.002, 0.004, 0.003), False),
    ],
)
def test_fastest_form_is_chosen(seconds: tuple[float, ...], chosen: Any) -> None:
    counter, said = tf.Variable(0), list[str]()
    choice = XlaChoice("auto", said.append, Clock(*seconds))
    assert choice.chosen is None and choice.recorded() == {}

    def step(compiled: bool) -> Any:
        return lambda batch: [batch + tf.cast(counter.assign_add(1), tf.float32)]

    choice.measure(step, tf.constant(1.0), with_loop=len(seconds) == 3, variables=[counter])
    assert choice.chosen == chosen and choice.recorded() == {"jit_compile": chosen}
    assert int(counter) == 0, "what was tried leaves nothing behind"
    assert said[-1].count(" ms") == len(seconds)  # after a message about the waiting time, on a busy machine


def test_resume_keeps_the_choice() -> None:
    for setting in (True, False, "loop"):
        fixed = XlaChoice(setting, clock=lambda: pytest.fail("measured"))  # type: ignore[arg-type]
        fixed.recall({"jit_compile": not setting})
        fixed.turn_off("anything")
        assert fixed.chosen == setting and fixed.recorded() == {}
    resumed = XlaChoice("auto", clock=lambda: pytest.fail("measured"))
    resumed.recall({})
    resumed.recall({"jit_compile": "loop"})
    resumed.measure(lambda compiled: pytest.fail("traced"), None, with_loop=True)
    assert resumed.chosen == "loop"


def test_chosen_form_does_not_change_the_run(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = tiny_trainer()
    plain.train(max_steps=12)
    for steps in (5, 12):
        trainer = tiny_trainer(experiment, model__jit_compile="auto")
        if steps == 5:
            trainer._xla._clock = Clock(0.002, 0.004)  # batches of another size at the end of a pass: no "loop"
        trainer.train([SaveOnExit()], max_steps=steps)
        assert ("auto takes no XLA" in capsys.readouterr().out) == (steps == 5)
    assert trainer.run.start_row().startswith("resumed at step 5")
    assert values(trainer) == values(plain)
    assert [one["jit_compile"] for one in json.loads((experiment / "run.json").read_text())["parts"]] == [False, False]
    environment = experiment / "environment.json"
    content = json.loads(environment.read_text())
    environment.write_text(json.dumps({**content, "trainer": "prototrain:SimpleTrainer", "model": "m", "modules": {}}))
    repeated = Config()
    Repeat(str(experiment)).configure(repeated)
    assert repeated["model.jit_compile"] is False


def test_uncompilable_model_and_custom_step(capsys: pytest.CaptureFixture[str]) -> None:
    def build(inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
        net = tiny_build(inputs, train_phase)
        net["seen"] = tf.cast(tf.size(tf.strings.as_string(inputs["x"])), tf.float32)
        return net

    tiny_trainer(build=build, model__jit_compile="auto").train(max_steps=1)
    assert "auto leaves XLA off, because XLA cannot compile this model: XLA (" in capsys.readouterr().out
    with pytest.raises(StepError, match=r"XLA \(model.jit_compile\) has no kernel for AsString"):
        tiny_trainer(build=build, model__jit_compile=True).train(max_steps=1)

    def fails(inputs: dict[str, Any], train_phase: bool) -> dict[str, Any]:
        net = tiny_build(inputs, train_phase)
        checks = [] if tf.executing_eagerly() else [tf.debugging.assert_less(net["loss"], 0.0)]
        with tf.control_dependencies(checks):
            return {**net, "loss": tf.identity(net["loss"])}

    with pytest.raises(StepError, match="step 1 failed in the model"):
        tiny_trainer(build=fails, model__jit_compile="auto").train(max_steps=1)
    assert "auto leaves XLA off, because the model fails on the first batch: " in capsys.readouterr().out

    class Own(SimpleTrainer):
        def train_step(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
            return super().train_step(inputs)

    Own(tiny_model(model__jit_compile="auto")).train(max_steps=1)
    assert "auto leaves XLA off, because Own has its own step" in capsys.readouterr().out


def test_several_towers(capsys: pytest.CaptureFixture[str]) -> None:
    keras.utils.clear_session(free_memory=False)
    trainer = SyncReplicatedTrainer(tiny_model(model__jit_compile="auto"), 2)
    before = values(trainer)
    trainer._prepare_step()
    assert values(trainer) == before and "auto takes " in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"AsyncTrainer cannot time .*use true"):
        AsyncTrainer(tiny_model(model__jit_compile="auto"), 2)


def test_auto_leaves_out_the_loop_if_the_step_has_summaries() -> None:
    def build(inputs: Any, train_phase: bool) -> Any:
        net = tiny_build(inputs, train_phase)
        tf.summary.scalar("loss_again", net.loss)
        return net

    trainer = tiny_trainer(build=build, model__jit_compile="auto")
    trainer.train([Summaries().every(steps=2)], max_steps=4)
    assert trainer.monitors.latest("trn/loss_again") == trainer.outputs["loss"]
