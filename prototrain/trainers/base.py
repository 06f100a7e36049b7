"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prototrain.callbacks.group import CallbackGroup
from prototrain.callbacks.monitor import Monitors
from prototrain.errors import NonFiniteError, StopTraining
from prototrain.experiment import Experiment
from prototrain.system.signals import StopRequest
from prototrain.trainers.banner import closing, opening
from prototrain.trainers.services import ENDLESS, TrainerServices
from prototrain.trainers.session import Storage
from prototrain.trainers.times import RunTimes

if TYPE_CHECKING:
    from prototrain.callbacks.base import Callback

CALL_SECONDS = 0.2


class Trainer(TrainerServices):
    """Runs anything that is done step by step. Subclass it and override `run_step`.

        setup callbacks, restore the newest checkpoint
        before_train
        for epoch_num in 1..max_epoch:
            before_epoch
            while local_step < steps_per_epoch:
                run_steps(up to the nearest step that any callback asked for)
                trigger_step on the callbacks whose step it is
            after_epoch, trigger_epoch
        after_train, whatever happened

    Args:
        experiment: the directory of the run, if it is to leave anything behind.

    Attributes:
        global_step: completed steps, over all runs that were resumed.
        epoch_num: the present epoch, from 1.
        steps_per_epoch, max_epoch, max_steps, total_steps: the length of the run; `total_steps` is where it ends.
        outputs: the last step's scalars by name.
        monitors: take scalars from anywhere (`monitors.put_scalar`) to the writers in the callback list.
        callbacks: the callbacks of the run.
        state: what a checkpoint holds, by name: variables, trackable objects, objects with `state_dict` and
            `load_state_dict`, and plain JSON values. A subclass registers here what a resumed run needs.
        is_chief: whether this process writes the experiment directory.
        record_gradient_norm: whether a compiled step has the scalar "gradient_norm".
        check_finite: whether a non-finite scalar of a step ends the run with an error.
        step_in_run: completed steps, for the hooks along with an iteration; a tensor where they are traced.
        times: where the time of the run goes.
        step_is_whole: False while a step is under way, and after one failed half-done.

    `TrainerServices` has what else a trainer offers: printing, saving, evaluating.
    """

    def __init__(self, *, experiment: Experiment | str | Path | None = None) -> None:
        self.experiment = Experiment(experiment) if isinstance(experiment, (str, Path)) else experiment
        self.global_step = 0
        self.epoch_num = 1
        self.steps_per_epoch = self.max_epoch = self.max_steps = self.total_steps = ENDLESS
        self.outputs: Mapping[str, Any] = {}
        self.state: dict[str, Any] = {}
        self.is_chief = True
        self.step_is_whole = True
        self.check_finite = False
        self.record_gradient_norm = False
        self.step_in_run: Any = 0
        self.evaluation_scopes = []
        self.stop = StopRequest(self.log)
        self.monitors = Monitors(self)
        self.callbacks = CallbackGroup(self)
        self.storage = Storage(self)
        self.times = RunTimes()

    # -- to override --------------------------------------------------------------------------------------------------

    def run_step(self) -> Mapping[str, Any] | None:
        """Do one iteration.

        Returns:
            the step's scalars by name, if there are any.
        """
        raise NotImplementedError(f"{type(self).__name__} must define run_step()")

    def run_steps(self, n: int) -> int:
        """Do up to `n` iterations, for about 0.2 s at most. `global_step` counts along.

        Returns:
            how many were done, at least one.
        """
        until = time.perf_counter() + CALL_SECONDS
        start = self.global_step
        for done in range(1, n + 1):
            self.step_is_whole, self.step_in_run = False, self.global_step
            try:
                self.callbacks.before_run()
                self.outputs = self._checked(self.run_step())
            except StopTraining:
                self.step_is_whole = True  # raised in place of a step, such as at the end of the data
                raise
            if self.check_finite:
                self._require_finite()
            try:
                self.callbacks.after_run(dict(self.outputs))
            except StopTraining:
                self.step_is_whole, self.global_step = True, start + done
                raise
            self.step_is_whole, self.global_step = True, start + done
            if self.stop.signum is not None or time.perf_counter() > until:
                break
        return self.global_step - start

    # -- the loop -----------------------------------------------------------------------------------------------------

    def train(
        self,
        callbacks: Iterable[Callback] = (),
        *,
        steps_per_epoch: int | None = None,
        max_epoch: int | None = None,
        max_steps: int | None = None,
        resume: bool = True,
    ) -> None:
        """Train until `max_epoch` or `max_steps`, whichever comes first, or until something stops the run.

        Args:
            callbacks: everything that is to happen besides the iterations.
            steps_per_epoch: the length of an epoch; by default the whole run is one epoch.
            max_epoch: the number of epochs.
            max_steps: the number of steps.
            resume: go on from the experiment's newest checkpoint, if there is one.

        Raises:
            PrototrainError: the user's mistakes, and what went wrong in a step.
            KeyboardInterrupt: after Ctrl-C, once everything is saved.
            SystemExit: after SIGTERM, with exit code 143, once everything is saved.
        """
        self._set_length(steps_per_epoch, max_epoch, max_steps)
        self.times.start()
        self.callbacks = CallbackGroup(self, callbacks)
        self.evaluation_scopes = []
        self.check_finite = self.record_gradient_norm = False
        with self.storage, self.stop:
            try:
                with self.setup_scope():
                    self.callbacks.setup()
                self.storage.restore(resume)
                self.storage.record_start()
                self.step_is_whole = True
                self.log(opening(self))
                self.callbacks.before_train()
                self._run_epochs()
            except StopTraining as reason:
                self.storage.stopped_by = str(reason) or "a callback asked for it"
                self.log(f"stopped after step {self.global_step}: {self.storage.stopped_by}")
                self.total_steps = self.global_step
                self.callbacks.trigger_last()
            except Exception as error:
                self.record_failure(error)
                raise
            finally:
                self.stop.stage = "saving"
                self.callbacks.after_train()
                self._say_where()
            self.stop.check()

    def _run_epochs(self) -> None:
        while self.callbacks.unfinished or self.global_step < self.total_steps:
            self.epoch_num = self._epoch_to_enter()
            self.callbacks.before_epoch()
            self.callbacks.finish_step()
            while self.local_step < self.steps_per_epoch and self.global_step < self.total_steps:
                self._advance(self.callbacks.next_step() - self.global_step)
                self.callbacks.trigger_step()
            self.callbacks.after_epoch()
            self.callbacks.trigger_epoch()

    def _advance(self, n: int) -> None:
        start, begin = self.global_step, self.times.clock()
        self.stop.check()
        self.global_step = start + self.run_steps(n)
        self.times.steps += self.times.clock() - begin

    @property
    def local_step(self) -> int:
        """Completed steps of the present epoch."""
        return self.global_step - (self.epoch_num - 1) * self.steps_per_epoch

    def _say_where(self) -> None:
        if self.global_step > self.storage.began_at:
            self.log(self.times.report(self.callbacks.times()))
        where = closing(self)
        if where is not None:
            self.log(where)

    def _checked(self, outputs: Mapping[str, Any] | None) -> dict[str, Any]:
        if outputs is None:
            return {}
        if not isinstance(outputs, Mapping) or not all(isinstance(name, str) for name in outputs):
            raise TypeError(f"run_step() must return a dict of scalars by name, or None; it returned {outputs!r}")
        return dict(outputs)

    def _require_finite(self) -> None:
        for name, value in self.outputs.items():
            if not math.isfinite(float(value)):
                raise NonFiniteError(f"{name} is {float(value)} in step {self.global_step + 1}")

    def _epoch_to_enter(self) -> int:
        # A step that a resumed run has to finish first belongs to the epoch that it ends.
        completed = self.global_step - 1 if self.callbacks.unfinished else self.global_step
        return max(completed, 0) // self.steps_per_epoch + 1

    def _set_length(self, steps_per_epoch: int | None, max_epoch: int | None, max_steps: int | None) -> None:
        lengths = {"steps_per_epoch": steps_per_epoch, "max_epoch": max_epoch, "max_steps": max_steps}
        for name, value in lengths.items():
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise ValueError(f"{name} must be a whole number and not negative, got {value!r}")
        if steps_per_epoch == 0:
            raise ValueError("steps_per_epoch must be at least 1")
        if max_epoch is not None and steps_per_epoch is None:
            raise ValueError("max_epoch needs steps_per_epoch: this trainer does not know how long an epoch is")
        self.max_steps = ENDLESS if max_steps is None else max_steps
        self.max_epoch = ENDLESS if max_epoch is None else max_epoch
        self.steps_per_epoch = (self.max_steps or 1) if steps_per_epoch is None else steps_per_epoch
        self.total_steps = min(self.max_steps, self.max_epoch * self.steps_per_epoch)
