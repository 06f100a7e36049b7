"""A callback with state belongs to one run."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from prototrain.callbacks import EarlyStopping, JSONWriter, ModelSaver, StartProcOrThread, Summaries, Validation
from prototrain.errors import CallbackError
from tests.tiny import CountingTrainer, tiny_trainer


def test_the_state_of_another_run_is_refused_at_the_start_and_restored_by_a_resume(experiment: Path) -> None:
    summaries = Summaries()
    callbacks = [summaries.every(steps=2), JSONWriter(), ModelSaver().every(steps=3)]
    CountingTrainer(experiment=experiment).train(callbacks, max_steps=3)
    with pytest.raises(CallbackError, match="has the state of another trainer's run; make a new one"):
        CountingTrainer().train([summaries.every(steps=2)], max_steps=3)
    trainer = CountingTrainer(experiment=experiment)
    trainer.train(callbacks, max_steps=6)
    assert [step for step, _ in trainer.monitors.history("trn/loss")] == [2, 3, 4, 6]


def test_callbacks_without_state_may_be_used_again(experiment: Path) -> None:
    callbacks = [Validation().every(steps=2), JSONWriter(), ModelSaver().every(steps=3)]
    for name in ("first", "second"):
        tiny_trainer(experiment / name).train(callbacks, max_steps=3)
        assert (experiment / name / "metrics.jsonl").exists()


def test_a_trainer_that_is_trained_further_keeps_what_its_callbacks_had() -> None:
    stopping = EarlyStopping("vld/loss", mode="max", patience=50)
    trainer = tiny_trainer()
    trainer.train([Validation(), stopping], steps_per_epoch=5, max_steps=10)
    best = stopping.best.value
    trainer.train([Validation(), stopping], steps_per_epoch=5, max_steps=15)
    assert stopping.best.value == best and stopping.best.step == 5


def test_a_thread_is_started_once() -> None:
    starter = StartProcOrThread(threading.Thread(target=lambda: None))
    tiny_trainer().train([starter], max_steps=1)
    with pytest.raises(CallbackError, match="cannot be started"):
        tiny_trainer().train([starter], max_steps=1)
