from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow as tf

from prototrain.callbacks import (
    CallbackFactory,
    HumanHyperParamSetter,
    HyperParam,
    HyperParamSetter,
    HyperParamSetterWithFunc,
    SaveOnExit,
    ScheduledHyperParamSetter,
    StatMonitorParamSetter,
)
from tests.callbacks.helpers import measures
from tests.tiny import CountingTrainer, Losses, Records, tiny_trainer


def knob(value: float = 1.0) -> SimpleNamespace:
    return SimpleNamespace(value=value)


def test_targets() -> None:
    trainer, mine = tiny_trainer(), tf.Variable(3.0, name="mine")
    trainer.state["other"] = other = keras.Variable(5.0)
    targets = ("learning_rate",), (mine,), ("other",), (knob(7.0), "value")
    for param, expected in zip((HyperParam(*target) for target in targets), (0.01, 3.0, 5.0, 7.0), strict=True):
        param.connect(trainer)
        assert param.get() == pytest.approx(expected)
        param.set(0.5)
        assert param.get() == 0.5
    assert float(other) == float(mine) == float(trainer.optimizer.learning_rate) == 0.5
    assert [HyperParam(mine).name, HyperParam(knob(), "value", name="x").name] == ["mine", "x"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"schedule": [(1, 0.5), (3, 0.25)]}, [1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]),
        ({"schedule": [(0, 0.5), (3, 0.25)], "step_based": True}, [0.5, 0.5, 0.5, *[0.25] * 5]),
        ({"schedule": zip([1, 3], [3, 5], strict=True), "interp": "linear"}, [1, 1, 3, 3, 4, 4, 5, 5]),
        ({"schedule": [(2, 3), (6, 5)], "interp": "linear", "step_based": True}, [1, 1, 3, 3.5, 4, 4.5, 5, 5]),
    ],
)
def test_schedules(options: dict[str, Any], expected: list[float]) -> None:
    target, trainer = knob(), CountingTrainer()
    setter = ScheduledHyperParamSetter(HyperParam(target, "value"), **options)
    in_force = Records(lambda _: target.value)
    trainer.train([in_force, setter], steps_per_epoch=2, max_steps=8)
    assert list(in_force.by_step.values()) == expected
    changes = [(step, b) for step, (a, b) in enumerate(pairwise(expected), 1) if a != b]
    assert trainer.monitors.history("hyper/value") == [(0, expected[0]), *changes]


SETTERS: list[Callable[[HyperParam], HyperParamSetter]] = [
    lambda param: ScheduledHyperParamSetter(param, [(1, 0.5), (3, 0.25)]),
    lambda param: ScheduledHyperParamSetter(param, [(2, 3), (9, 5)], interp="linear", step_based=True),
    lambda param: HyperParamSetterWithFunc(param, lambda epoch, old: old * 2),
    lambda param: StatMonitorParamSetter(param, "vld/loss", lambda old: old / 2, mode="min", last_k=1),
]


@pytest.mark.parametrize("make", SETTERS)
def test_resumed_run_has_the_same_values(make: Callable[[HyperParam], HyperParamSetter], tmp_path: Path) -> None:
    def run(experiment: Path, max_steps: int) -> tuple[dict[int, float], list[tuple[int, float]]]:
        target, trainer = knob(), CountingTrainer(experiment=experiment)
        in_force = Records(lambda _: target.value)
        measure = measures("vld/loss", lambda step: max(10 - 3 * step, 4))
        callbacks = [make(HyperParam(target, "value")), measure, in_force, SaveOnExit()]
        trainer.train(callbacks, steps_per_epoch=2, max_steps=max_steps)
        return in_force.by_step, trainer.monitors.history("hyper/value")

    whole, recorded = run(tmp_path / "a", 12)
    assert len(set(whole.values())) > 2
    parts: dict[int, float] = {}
    for end in (3, 7, 12):
        by_step, recorded_in_parts = run(tmp_path / "b", end)
        parts |= by_step
    assert parts == whole and recorded_in_parts == recorded


def test_function_of_the_epoch_and_a_subclass() -> None:
    class Doubled(HyperParamSetterWithFunc):
        def new_value(self) -> float | None:
            value = super().new_value()
            return None if value is None else 2 * value

    seen: list[tuple[int, float]] = []

    def choose(epoch: int, old: float) -> float | None:
        seen.append((epoch, old))
        return None if epoch == 1 else epoch + 1.0

    trainer = CountingTrainer()
    trainer.train([Doubled(HyperParam(knob(), "value"), choose)], steps_per_epoch=3, max_epoch=3)
    assert seen == [(0, 1.0), (1, 2.0), (2, 2.0), (3, 6.0)]
    assert trainer.monitors.history("hyper/value") == [(0, 2.0), (6, 6.0), (9, 8.0)]


@pytest.mark.parametrize(
    ("mode", "values", "changed_at"),
    [
        ("min", [5, 4, 3, 2, 1, 0], []),
        ("min", [5, 5, 5, 5, 5, 5], [3, 5]),
        ("max", [1, 2, 1, 1, 1, 1], [4, 6]),
        ("max", [1, 0, 2, 2, 2, 2], [5]),
    ],
)
def test_scalar_that_stops_improving(mode: Any, values: list[float], changed_at: list[int]) -> None:
    target, trainer = knob(), CountingTrainer()
    setter = StatMonitorParamSetter(HyperParam(target, "value"), "vld/x", lambda old: old / 2, mode=mode, last_k=2)
    trainer.train([measures("vld/x", lambda step: values[step - 1]), setter.every(steps=1)], max_steps=6)
    assert [step for step, _ in trainer.monitors.history("hyper/value")] == [0, *changed_at]


def test_human_edits_the_file(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {
        1: "",
        2: "# a comment\n\nrate: 0.5\nother = 3\n",
        3: "rate: 0.5\nwhat is this\nrate = fast\n",
        4: "rate: 0.5\nwhat is this\nrate = 0.25  # half\nrate = nan\n",
    }

    trainer = CountingTrainer(experiment=experiment)
    edit = CallbackFactory(trigger=lambda _: (experiment / "hyper.txt").write_text(texts[trainer.global_step]))
    setter = HumanHyperParamSetter(HyperParam(knob(), "value", name="rate"))
    trainer.train([edit.every(steps=1), setter.every(steps=1)], max_steps=4)
    assert trainer.monitors.history("hyper/rate") == [(0, 1.0), (2, 0.5), (4, 0.25)]
    printed = capsys.readouterr().out
    assert printed.count("ignored the line 'what is this'") == printed.count("ignored the line 'rate = fast'") == 1
    assert "rate is 0.5 from step 3 on (it was 1)" in printed
    assert printed.count("ignored the line 'other = 3'") == 1 and "a comment" not in printed


@pytest.mark.parametrize("before", [[(0, 0.5), (2, 0.25)], [(0, 0.5), (2, 0.125), (5, 0.0625)], None])
def test_changed_schedule_takes_effect_in_a_resumed_run(before: Any, experiment: Path) -> None:
    for schedule, max_steps in ((before, 4), ([(0, 0.5), (2, 0.125), (5, 0.0625)], 6)):
        mine = [] if schedule is None else [ScheduledHyperParamSetter("learning_rate", schedule, step_based=True)]
        rates = Losses("learning_rate")
        tiny_trainer(experiment).train([rates, *mine, SaveOnExit()], max_steps=max_steps)
    assert rates.by_step == {5: 0.125, 6: 0.0625}
