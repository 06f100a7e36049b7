from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import tensorflow as tf

from prototrain import Callback
from prototrain.callbacks import EnableCallbackIf, PeriodicCallback
from prototrain.errors import CallbackError
from prototrain.trainers.tower import SimpleTrainer
from tests.tiny import CountingTrainer, Recorder, tiny_model, tiny_trainer


class InRun(Callback):
    """Notes, in a variable that a compiled step can change, the steps that its traced hook ran in."""

    def setup(self) -> None:
        self.ran = tf.Variable(tf.zeros([40], tf.int32), trainable=False)

    def after_run(self, outputs: dict[str, Any]) -> None:
        self.ran.scatter_nd_add([[tf.cast(self.trainer.counter.begun, tf.int32) + 1]], [1])

    def steps(self) -> list[int]:
        return tf.where(self.ran > 0)[:, 0].numpy().tolist()


class StepRecorder(Recorder):
    def trigger_step(self) -> None:
        self._note("trigger_step")


@pytest.mark.parametrize(
    ("intervals", "steps", "epochs"),
    [
        ({"every_k_steps": 5}, [5, 10, 15, 20], [20]),
        ({"every_k_epochs": 2}, [5, 6, 7, 8, 13, 14, 15, 16], [8, 16]),
        ({"every_k_steps": 7, "every_k_epochs": 4}, [7, 13, 14, 15, 16], [16]),
    ],
)
def test_periodic_callback(intervals: dict[str, int], steps: list[int], epochs: list[int]) -> None:
    recorder = StepRecorder()
    CountingTrainer().train([PeriodicCallback(recorder, **intervals)], steps_per_epoch=4, max_steps=20)
    assert recorder.steps("trigger_step") == steps
    assert recorder.steps("trigger_epoch") == epochs
    assert recorder.steps("setup") == [0] and recorder.steps("after_train") == [20]


@pytest.mark.parametrize("trainer", [CountingTrainer, tiny_trainer])
def test_periodic_callback_along_with_steps(trainer: Any) -> None:
    inner = InRun()
    trainer().train([PeriodicCallback(inner, every_k_steps=6)], steps_per_epoch=5, max_steps=20)
    assert inner.steps() == [6, 12, 18]


def test_a_condition_for_hooks_of_the_compiled_step_is_refused() -> None:
    with pytest.raises(CallbackError, match="InRun: its before_run or after_run is traced into the step"):
        EnableCallbackIf(InRun(), lambda trainer: True)


def test_enable_callback_if_on_the_host() -> None:
    recorder, periodic = StepRecorder(), Recorder()
    CountingTrainer().train(
        [
            EnableCallbackIf(recorder, lambda trainer: trainer.global_step % 3 == 0),
            EnableCallbackIf(periodic, lambda trainer: trainer.global_step > 4).every(steps=2),
        ],
        steps_per_epoch=5,
        max_steps=10,
    )
    assert recorder.steps("trigger_step") == [3, 6, 9]
    assert recorder.steps("trigger_epoch") == []
    assert periodic.steps("trigger") == [6, 8, 10]


def test_a_callback_without_steps_costs_none() -> None:
    callback = EnableCallbackIf(Recorder(), lambda trainer: True)
    assert callback.next_step(3) is None


class OneByOne(SimpleTrainer):
    """Has a step of its own around the compiled one."""

    def run_step(self) -> Mapping[str, Any] | None:
        return super().run_step()


def test_in_a_step_of_ones_own_around_a_compiled_one() -> None:
    ran: list[int] = []

    class Notes(Callback):
        def after_run(self, outputs: dict[str, Any]) -> None:
            ran.append(int(self.trainer.counter.begun) + 1)

    OneByOne(tiny_model()).train([PeriodicCallback(Notes(), every_k_steps=2)], max_steps=5)
    assert ran == [2, 4]
