"""The loop: which hooks run, in which order and at which steps."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import AsyncTrainer, Callback, NoOpTrainer, StopTraining, SyncReplicatedTrainer, current_tower
from prototrain.callbacks import (
    CallbackFactory,
    EarlyStopping,
    JSONWriter,
    ModelSaver,
    SaveOnExit,
    Summaries,
    Validation,
)
from prototrain.errors import CallbackError, CheckpointError, ConfigError, ExperimentError, PrototrainError
from tests.callbacks.helpers import measures
from tests.step.test_calls import AllLosses
from tests.tiny import At, CountingTrainer, Recorder, failing, raising, tiny_build, tiny_model, tiny_trainer


class Tally(Recorder):
    """A callback whose state depends on how often and when the hooks of steps and epochs are called."""

    at_end = False

    def _note(self, hook: str) -> None:
        if hook not in ("setup", "before_train", "after_train"):
            self.calls.append([hook, self.trainer.epoch_num, self.trainer.global_step])  # type: ignore[arg-type]

    def trigger_step(self) -> None:
        self._note("trigger_step")

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


def test_order_of_hooks() -> None:
    recorder = Recorder()
    periodic = Recorder(recorder.calls).every(steps=3)
    CountingTrainer().train([recorder, periodic], steps_per_epoch=4, max_epoch=2)
    assert [call for call in recorder.calls if call[0] != "setup" and "train" not in call[0]] == [
        *(("before_epoch", 0), ("before_epoch", 0), ("trigger", 3)),
        *(("after_epoch", 4), ("after_epoch", 4), ("trigger_epoch", 4)),
        *(("before_epoch", 4), ("before_epoch", 4), ("trigger", 6)),
        *(("after_epoch", 8), ("after_epoch", 8), ("trigger_epoch", 8)),
        ("trigger", 8),  # the last step of a run counts as due
    ]


@pytest.mark.parametrize(
    ("steps_per_epoch", "max_epoch", "max_steps", "total", "epochs"),
    [
        (4, 2, None, 8, 2),
        (4, 2, 6, 6, 2),
        (4, None, 6, 6, 2),
        (None, None, 5, 5, 1),
        (4, 3, 100, 12, 3),
        (4, None, 0, 0, 0),
        (1, 3, None, 3, 3),
    ],
)
def test_length_of_a_run(
    steps_per_epoch: int | None, max_epoch: int | None, max_steps: int | None, total: int, epochs: int
) -> None:
    trainer, recorder = CountingTrainer(), Recorder()
    trainer.train([recorder], steps_per_epoch=steps_per_epoch, max_epoch=max_epoch, max_steps=max_steps)
    assert trainer.global_step == trainer.total_steps == total
    assert trainer.state["total"] == sum(range(total + 1))
    assert len(recorder.steps("before_epoch")) == len(recorder.steps("after_epoch")) == epochs
    assert recorder.steps("after_train") == [total]


@pytest.mark.parametrize(
    ("hook", "step"), [("setup", 0), ("before_train", 0), ("trigger_step", 1), ("trigger_epoch", 2)]
)
def test_after_train_always_runs(hook: str, step: int) -> None:
    first, last = Recorder(), Recorder()
    with pytest.raises(RuntimeError, match="a mistake"):
        fails = failing(hook, step, RuntimeError("a mistake"))
        CountingTrainer().train([first, fails, last], steps_per_epoch=2, max_epoch=1)
    assert len(first.steps("after_train")) == 1
    assert len(last.steps("after_train")) == (0 if hook == "setup" else 1)


def test_failing_after_train() -> None:
    recorder = Recorder()
    with pytest.raises(RuntimeError, match="at the end"):
        CountingTrainer().train([failing("after_train", 2, RuntimeError("at the end")), recorder], max_steps=2)
    assert recorder.steps("after_train") == [2]
    with pytest.raises(KeyError, match="early") as caught:
        early = At(1, raising(KeyError("early")))
        CountingTrainer().train([failing("after_train", 1, RuntimeError("at the end")), early], max_steps=2)
    assert any("at the end" in note for note in caught.value.__notes__)


def test_before_and_after_run() -> None:
    calls: list[Any] = []

    class Around(Callback):
        def before_run(self) -> None:
            calls.append(("before", self.trainer.counter.begun))

        def after_run(self, outputs: dict[str, Any]) -> None:
            calls.append(("after", outputs["loss"]))

    CountingTrainer().train([Around()], max_steps=2)
    assert calls == [("before", 0), ("after", 1.0), ("before", 1), ("after", 0.5)]


def test_changes_between_two_runs_are_kept(tmp_path: Path) -> None:
    """The states of callbacks continue too, also in new objects."""

    def callbacks() -> list[Callback]:
        rising = measures("vld/x", lambda step: float(step))
        return [rising, EarlyStopping("vld/x", mode="min", patience=4).every(steps=1), SaveOnExit()]

    trainer = tiny_trainer(tmp_path)
    trainer.train(callbacks(), max_steps=3)
    kernel = trainer.variables["logits/kernel"]
    kernel.assign(tf.fill(kernel.shape, 50.0))
    trainer.train(callbacks(), max_steps=9)
    assert trainer.global_step == 5 and np.all(np.abs(kernel.numpy() - 50) < 1)
    assert trainer.run.start_row() == "continues from step 3"
    trainer.config["model.optimizer.method"] = "sgd"
    with pytest.raises(ConfigError, match=r"model\.optimizer\.method was changed"):
        trainer.train(callbacks(), max_steps=9)


class Sometimes(Callback):
    """A callback with entries in the state and, if it fails in `setup`, without a state."""

    fails = False

    def setup(self) -> None:
        if self.fails:
            raise ValueError("on purpose")
        self.trainer.state["callbacks/Sometimes/list"] = []
        self.trainer.state.setdefault("callbacks/Sometimes/variable", tf.Variable(0.0))

    def state_dict(self) -> dict[str, Any]:
        if self.fails:
            raise ValueError("nothing")
        return {}


def test_refused_run_between_two_runs_changes_nothing(tmp_path: Path) -> None:
    trainer, failing = tiny_trainer(tmp_path), Sometimes()
    failing.fails = True
    trainer.train([Sometimes(), SaveOnExit()], max_steps=2)
    kernel = trainer.variables["logits/kernel"]
    kernel.assign(tf.fill(kernel.shape, 50.0))
    with pytest.raises(ValueError, match="on purpose"):
        trainer.train([failing], max_steps=4)
    assert "callbacks/Sometimes/variable" in trainer.state
    trainer.train([Sometimes()], max_steps=4)
    assert np.all(np.abs(kernel.numpy() - 50) < 1) and trainer.global_step == 4
    trainer.train([], max_steps=5)
    assert not [name for name in trainer.state if name.startswith("callbacks/")]


def test_resume_false_keeps_old_checkpoints(tmp_path: Path) -> None:
    CountingTrainer(experiment=tmp_path).train([SaveOnExit()], max_steps=3)
    trainer = CountingTrainer(experiment=tmp_path)
    trainer.train([SaveOnExit()], max_steps=2, resume=False)
    assert trainer.state["total"] == 3
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-0000000002"]
    assert [path.name for path in (tmp_path / "checkpoints.superseded").iterdir()] == ["step-0000000003"]


@pytest.mark.parametrize("hook", ["before_run", "after_run"])
def test_stop_training_in_after_run_saves_the_step(hook: str, tmp_path: Path) -> None:
    trainer = CountingTrainer(experiment=tmp_path)
    losses = AllLosses()
    trainer.train([failing(hook, 2, StopTraining("here")), losses, SaveOnExit()], max_steps=5)
    assert trainer.run.checkpoints.steps() == [2 if hook == "before_run" else 3] == [trainer.global_step]
    assert len(losses.losses) == trainer.global_step


EPOCH_HOOKS = ("before_epoch", "trigger_step", "after_epoch", "trigger_epoch")


@pytest.mark.parametrize("error", [None, StopTraining("enough")], ids=["signal", "StopTraining"])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(("hook", "step"), [*((hook, 3) for hook in EPOCH_HOOKS), ("trigger_step", 4)])
def test_hooks_run_once_for_a_stopped_epoch(
    tmp_path: Path, hook: str, step: int, is_first: bool, error: BaseException | None
) -> None:
    length = {"steps_per_epoch": 3, "max_epoch": 3}
    straight = Tally()
    CountingTrainer().train([straight], **length)
    stop = failing(hook, step, error)
    with suppress(KeyboardInterrupt):
        found = [stop, Tally()] if is_first else [Tally(), stop]
        CountingTrainer(experiment=tmp_path).train([*found, SaveOnExit()], **length)
    resumed = Tally()
    trainer = CountingTrainer(experiment=tmp_path)
    trainer.train([resumed, SaveOnExit()], **length)
    assert trainer.run.began_at == step and resumed.calls == straight.calls


@pytest.mark.parametrize("error", [OSError("disk"), KeyboardInterrupt()], ids=["error", "interrupted"])
@pytest.mark.parametrize("step", [3, 4])
def test_callbacks_of_a_failed_step_run_once(tmp_path: Path, step: int, error: BaseException) -> None:
    calls: list[tuple[str, int]] = []
    length = {"steps_per_epoch": 3, "max_steps": 5}
    with pytest.raises(type(error)):
        stop = failing("trigger_step", step, error)
        CountingTrainer(experiment=tmp_path).train([Recorder(calls).every(steps=1), stop, SaveOnExit()], **length)
    CountingTrainer(experiment=tmp_path).train([Recorder(calls).every(steps=1), SaveOnExit()], **length)
    triggered = [at for hook, at in calls if hook == "trigger"]
    assert triggered == [1, 2, 3, 4, 5]


def test_callbacks_of_a_trainer_with_its_own_run_steps() -> None:
    class Own(CountingTrainer):
        def run_steps(self, n: int) -> int:
            for _ in range(n):
                self.run_step()
            self._set_step(self.global_step + n)
            return n

    calls: list[tuple[str, int]] = []
    Own().train([Recorder(calls).every(steps=2)], max_steps=5)
    assert [at for hook, at in calls if hook == "trigger"] == [2, 4, 5]


@pytest.mark.parametrize("hook", ["run_step", "after_run"])
def test_run_that_ends_within_its_first_call_has_a_last_step(hook: str) -> None:
    class Ends(CountingTrainer):
        def run_step(self) -> dict[str, float]:
            if hook == "run_step" and self.global_step == 5:
                raise StopTraining("the data has ended")
            return super().run_step()

    class EndsAfter(Callback):
        def after_run(self, outputs: dict[str, Any]) -> None:
            if hook == "after_run" and self.trainer.global_step == 4:
                raise StopTraining("enough")

    recorder = Recorder()
    Ends().train([EndsAfter(), recorder.every(steps=100)], max_steps=50)
    assert recorder.steps("trigger") == [5]


def test_train_within_train_is_an_error() -> None:
    trainer = CountingTrainer()
    again = CallbackFactory(trigger=lambda self: self.trainer.train(max_steps=9))
    with pytest.raises(CallbackError, match="is running already"):
        trainer.train([again.every(steps=2)], max_steps=4)
    trainer.train(max_steps=6)
    assert trainer.global_step == 6


class Prepares(Callback):
    """Keeps a value for the epoch in an attribute that no checkpoint contains."""

    at_end = False

    def before_epoch(self) -> None:
        self.epoch = self.trainer.epoch_num
        for name in ("plain", "array"):
            self.trainer.state[name] += 1
        self.trainer.state["variable"].assign_add(1)

    def trigger_step(self) -> None:
        assert self.epoch == (self.trainer.global_step - 1) // 3 + 1

    after_epoch = trigger_epoch = trigger_step


def prepared(experiment: Path, callbacks: list[Callback], steps: int = 9) -> CountingTrainer:
    trainer = CountingTrainer(experiment=experiment)
    trainer.state |= {"plain": 0, "variable": tf.Variable(0), "array": np.zeros([])}
    trainer.train([*callbacks, SaveOnExit()], steps_per_epoch=3, max_steps=steps)
    return trainer


def counts(trainer: CountingTrainer) -> list[int]:
    return [int(trainer.state[name]) for name in ("plain", "variable", "array")]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(("hook", "step"), [*((hook, 3) for hook in EPOCH_HOOKS[1:]), ("trigger_step", 4)])
def test_stateless_callbacks_get_before_epoch_again(tmp_path: Path, hook: str, step: int, is_first: bool) -> None:
    stop = failing(hook, step, OSError("disk"))
    with pytest.raises(OSError, match="disk"):
        prepared(tmp_path, [stop, Prepares()] if is_first else [Prepares(), stop])
    trainer = prepared(tmp_path, [Prepares()])
    assert counts(trainer) == [3, 3, 3]
    assert trainer.run.start_row().startswith(f"resumed at step {step}")


def test_resume_with_another_epoch_length(tmp_path: Path) -> None:
    for length, end in ((10, 5), (5, 15)):
        recorder = Recorder()
        trainer = CountingTrainer(experiment=tmp_path)
        trainer.train([recorder, SaveOnExit()], steps_per_epoch=length, max_steps=end)
    assert recorder.steps("before_epoch") == [5, 10] and recorder.steps("after_epoch") == [10, 15]


@pytest.mark.parametrize("end", [2, 3])
def test_extended_run_begins_each_epoch_once(tmp_path: Path, end: int) -> None:
    straight, extended = Tally(), Tally()
    CountingTrainer().train([straight], steps_per_epoch=3, max_steps=9)
    CountingTrainer(experiment=tmp_path).train([Tally(), SaveOnExit()], steps_per_epoch=3, max_steps=end)
    CountingTrainer(experiment=tmp_path).train([extended, SaveOnExit()], steps_per_epoch=3, max_steps=9)
    assert extended.calls == straight.calls


def test_incomplete_step_restores_the_checkpoint(tmp_path: Path) -> None:
    class FailsOnce(CountingTrainer):
        failed = False

        def run_step(self) -> dict[str, float]:
            outputs = super().run_step()
            if self.global_step == 5 and not self.failed:
                self.failed = True
                raise OSError("after the change, before the end")
            return outputs

    trainer = FailsOnce(experiment=tmp_path)
    with pytest.raises(OSError, match="after the change"):
        trainer.train([ModelSaver().every(steps=3)], max_steps=8)
    assert trainer.global_step == 5 and not trainer.step_is_whole
    trainer.train([ModelSaver().every(steps=3)], max_steps=8)
    assert trainer.state["total"] == 36
    without = FailsOnce()
    with pytest.raises(OSError, match="after the change"):
        without.train(max_steps=8)
    with pytest.raises(CheckpointError, match="no checkpoint to go back to"):
        without.train(max_steps=8)


def files(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != ".lock"}


def test_fresh_start_deletes_after_the_checks(experiment: Path) -> None:
    CountingTrainer(experiment=experiment).train([SaveOnExit(), JSONWriter()], max_steps=4)
    (experiment / "analysis").mkdir()
    before = files(experiment)
    hooks = [[failing(hook, 0, PrototrainError("a mistake"))] for hook in ("setup", "check_run")]
    refused: list[list[Any]] = [*hooks, [SaveOnExit]]
    for callbacks in refused:
        with pytest.raises(PrototrainError):
            CountingTrainer(experiment=experiment).train([*callbacks, JSONWriter()], max_steps=2, fresh=True)
        assert files(experiment) == before
    trainer = CountingTrainer(experiment=experiment)
    trainer.train([SaveOnExit()], max_steps=2, fresh=True, allow_changed_data=True)
    assert trainer.run.start_row() == "fresh" and trainer.run.checkpoints.steps() == [2]
    assert trainer.state["total"] == 3
    assert not (experiment / "analysis").exists() and not (experiment / "metrics.jsonl").exists()
    with pytest.raises(ExperimentError, match=r"fresh=True\): this trainer has already run 2 steps"):
        trainer.train([SaveOnExit()], max_steps=4, fresh=True)
    assert trainer.run.checkpoints.steps() == [2]


def test_stop_training_completes_the_step() -> None:
    early, late = Recorder(), Recorder()
    trainer = CountingTrainer()
    trainer.train([early.every(steps=2), At(4, raising(StopTraining("enough"))), late.every(steps=2)], max_steps=10)
    assert trainer.global_step == 4 and trainer.outcome.reason == "enough"
    assert early.steps("trigger") == late.steps("trigger") == [2, 4]
    trainer.train(max_steps=6)
    assert trainer.global_step == 6 and trainer.outcome.reason is None


def test_no_op_trainer(experiment: Path) -> None:
    for steps in (5, 9):
        trainer, recorder = NoOpTrainer(experiment=experiment), Recorder()
        trainer.train([recorder.every(steps=2), SaveOnExit()], max_steps=steps)
    assert trainer.global_step == 9 and trainer.outputs == {} and recorder.steps("trigger") == [6, 8, 9]


def stepping_build(inputs: Any, train_phase: bool) -> Any:
    net = tiny_build(inputs, train_phase)
    net.now = tf.cast(current_tower().global_step, tf.float32)
    return net


class InTrace(Callback):
    """Records the counters in each iteration."""

    def setup(self) -> None:
        self.seen = self.trainer.state["callbacks/seen"] = tf.Variable(tf.zeros([20, 3], tf.int64))

    def before_run(self) -> None:
        trainer = self.trainer
        now = tf.stack([trainer.global_step, trainer.epoch_num, trainer.local_step])
        self.seen.scatter_nd_add([[trainer.counter.begun]], [now])


def test_step_number_in_each_step(tmp_path: Path) -> None:
    first, now = tiny_trainer(tmp_path, build=stepping_build), ([[0.0] * 4], ["now"])
    predict = first.get_predictor(["x"], now[1])
    assert predict(now[0]) == [0]
    first.train([InTrace(), SaveOnExit()], steps_per_epoch=4, max_steps=3)
    assert predict(now[0]) == [3] and "global_step" not in first.variables
    again, seen = tiny_trainer(tmp_path, build=stepping_build), InTrace()
    again.train([seen, Summaries(), Validation(), SaveOnExit()], steps_per_epoch=4, max_steps=10)
    assert seen.seen.numpy().tolist()[:10] == [[step, step // 4 + 1, step % 4] for step in range(10)]
    assert again.run.start_row().startswith("resumed at step 3")
    assert again.monitors.latest("trn/now") == 8.5 and again.outputs["now"] == 9  # the mean of 8 and 9
    assert again.monitors.history("vld/now") == [(4, 4.0), (8, 8.0), (10, 10.0)]


@pytest.mark.parametrize("make", [SyncReplicatedTrainer, AsyncTrainer], ids=lambda make: make.__name__)
def test_step_number_on_several_towers(make: Any) -> None:
    trainer, seen = make(tiny_model(build=stepping_build), towers="cpu:2"), InTrace()
    trainer.train([seen], steps_per_epoch=4, max_steps=4)
    assert seen.seen.numpy().tolist()[:4] == [[step, 1, step] for step in range(4)]
    assert trainer.outputs["now"] == 3 or make is AsyncTrainer
