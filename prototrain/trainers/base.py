"""The training loop, and the interface that callbacks use."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib import import_module
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow as tf

from prototrain.callbacks.group import CallbackGroup
from prototrain.callbacks.monitor import Monitors, as_number
from prototrain.checkpoint.state import CALLBACK_PREFIX, variables_in
from prototrain.errors import CallbackError, ConfigError, ExperimentError, ModelError, NonFiniteError, StopTraining
from prototrain.experiment import Experiment
from prototrain.experiment.experiment import VERIFY
from prototrain.experiment.facts import Facts, file_digests, home_of, sources_of, versions
from prototrain.experiment.record import Outcome
from prototrain.step.variables import CALL_SECONDS, SHARED_SCALARS, StepCounter
from prototrain.system.signals import StopRequest, end_child
from prototrain.trainers.report import RunTimes, closing, opening
from prototrain.trainers.run import Run

if TYPE_CHECKING:
    from prototrain.callbacks.base import Callback
    from prototrain.config import Config
    from prototrain.predictor import Predictor


T = TypeVar("T")
ENDLESS = sys.maxsize
"""`Trainer.total_steps` of a run without a planned end."""


class Trainer:
    """Base class of all trainers: the loop and its callbacks. Subclass it and override `run_step`.

        setup of the callbacks, restore the newest checkpoint, check_run
        before_train
        for epoch_num in 1..max_epoch:
            before_epoch
            while local_step < steps_per_epoch:
                run_steps(up to the next step at which a callback is due)
                trigger_step of the callbacks that are due
            after_epoch, trigger_epoch
        after_train, even if the run failed

    Args:
        experiment: the experiment directory, or its path. Without one the trainer writes no files.

    Attributes:
        steps_per_epoch, max_epoch, max_steps, total_steps: the length of the run; `total_steps` is its last step.
        outputs: the last step's scalars by name.
        state: the content of a checkpoint, by name: variables, trackable objects, objects with `state_dict` and
            `load_state_dict`, and plain JSON values. A subclass adds whatever a resumed run needs. A restore fills an
            array, a list or a dict in place, but makes the items of a list or dict anew.
        callbacks: the callbacks of the run.
        monitors: forwards scalars (`monitors.put_scalar`) to the writers among the callbacks.
        experiment: the experiment directory, or None.
        run: the current run in the experiment directory: its checkpoints, and how it was resumed.
        stop: the `StopRequest` that signals set.
        is_chief: whether this process writes the experiment directory.
        workers: the number of processes that train together. If one of them fails, the run ends.
        config, optimizer, datasets, element_spec, keras_model: set by subclasses that have them, else None.
    """

    config: Config | None = None
    optimizer: Any = None
    datasets: Mapping[str, Any] | None = None
    element_spec: Mapping[str, Any] | None = None
    keras_model: Any = None
    model_source: Path | None = None  # the package or file of the model, which the experiment copies
    unaveraged: Collection[str] = SHARED_SCALARS  # scalars of which `Summaries` records the last value
    workers = 1

    def __init__(self, *, experiment: Experiment | str | Path | None = None) -> None:
        self.experiment = Experiment(experiment) if isinstance(experiment, (str, Path)) else experiment
        self.counter = StepCounter()
        self._epoch_num = 1
        self.steps_per_epoch = self.max_epoch = self.max_steps = self.total_steps = ENDLESS
        self.given_steps_per_epoch: int | None = None  # by `train`; it is saved with the config
        self.outputs: Mapping[str, Any] = {}
        # Tensors of the last step by name, and its TensorBoard events, if a callback watches them: `Callback.watches`.
        self.watched: Mapping[str, Any] = MappingProxyType({})
        self.summary_events: Sequence[Any] = ()
        self.step_is_whole = True  # False during a step, and after a step that failed halfway
        self.state: dict[str, Any] = {}
        self.is_chief = True
        self.check_finite = False  # whether a scalar, update or variable that is not finite ends the run
        self.record_gradient_norm = False  # whether a compiled step has the scalar "gradient_norm"
        self.allow_changed_data = False
        # Functions that return a context manager; evaluations run inside all of these.
        self.evaluation_scopes: list[Callable[[], AbstractContextManager[None]]] = []
        self.stop = StopRequest(self.log)
        self.monitors = Monitors(self)
        self.callbacks = CallbackGroup(self)
        self.run = Run(self)
        self.times = RunTimes()  # how the run spends its time

    def run_step(self) -> Mapping[str, Any] | None:
        """Run one iteration. Subclasses must override this method.

        Returns:
            the step's scalars by name, or None.
        """
        raise NotImplementedError(f"{type(self).__name__} must define run_step()")

    def run_steps(self, n: int) -> int:
        """Run up to `n` iterations, for about 0.2 s at most, and update `global_step`.

        Returns:
            the number of iterations, at least one.
        """
        until = time.perf_counter() + CALL_SECONDS
        start = self.global_step
        for done in range(1, n + 1):
            self._python_step(start + done)
            if self.stop.signum is not None or self.callbacks.stop_training or time.perf_counter() > until:
                break
        return self.global_step - start

    def _python_step(self, step: int) -> None:
        """Call `run_step`, with the callbacks' hooks before and after it."""
        self.counter.begin()
        self.step_is_whole = False  # `_set_step` sets it to True
        before = self.outputs
        try:
            self.callbacks.before_run()
            outputs = self.run_step()
        except StopTraining:  # no step was completed, for example at the end of the data
            self._set_step(step - 1)
            raise
        outputs = {} if outputs is None else outputs
        if not isinstance(outputs, Mapping) or not all(isinstance(name, str) for name in outputs):
            raise ModelError(f"run_step() must return a dict of scalars by name, or None; it returned {outputs!r}")
        # A compiled step within this one has set `outputs`, and checked them.
        checked = {} if self.outputs is before else self.outputs
        self.outputs = dict(outputs)
        if self.check_finite:
            for name, value in outputs.items():
                if value is not checked.get(name) and not math.isfinite(number := as_number(name, value)):
                    raise NonFiniteError(f"{name} is {number} in step {step}")
        stop: StopTraining | None = None
        try:
            self.callbacks.after_run(dict(outputs))
        except StopTraining as error:
            stop = error
        self._set_step(step)
        self.callbacks.after_steps({name: [value] for name, value in outputs.items()})
        if stop is not None:
            raise stop

    def train(
        self,
        callbacks: Iterable[Callback] = (),
        *,
        steps_per_epoch: int | None = None,
        max_epoch: int | None = None,
        max_steps: int | None = None,
        resume: bool = True,
        fresh: bool = False,
        allow_changed_data: bool = False,
    ) -> None:
        """Train until `max_epoch` or `max_steps`, whichever comes first, or until a callback or a signal stops the run.

        Args:
            callbacks: the callbacks of the run.
            steps_per_epoch: the length of an epoch; by default ``trainer.steps_per_epoch`` of a config, else the
                number of batches in the data, else the number of steps.
            max_epoch: the number of epochs.
            max_steps: the number of steps; by default ``model.num_steps`` of a config if `max_epoch` is None.
            resume: continue from the newest checkpoint of the experiment, if there is one. A second call of this method
                continues from the trainer's current state.
            fresh: delete everything in the experiment directory, without asking, after the callbacks are set up.
            allow_changed_data: begin a new pass if the training data differs from the checkpoint's.

        Raises:
            PrototrainError: the run is not set up correctly, or a step failed.
            KeyboardInterrupt: after Ctrl-C, once everything is saved.
            SystemExit: after SIGTERM, SIGHUP or SIGXCPU, once everything is saved; the exit code is 128 plus the
                number of the signal.
        """
        if self.run.is_active:
            raise CallbackError("train() of this trainer is running already; call it again after it has returned")
        if VERIFY in os.environ:
            callbacks = import_module("prototrain.recorder").record(self, callbacks)
        self._set_length(steps_per_epoch, max_epoch, max_steps)
        self.given_steps_per_epoch = steps_per_epoch
        self.times.start()
        self.callbacks = CallbackGroup(self, callbacks)
        self.allow_changed_data = allow_changed_data
        self.evaluation_scopes = []
        self.check_finite = self.record_gradient_norm = False
        process = os.getpid()
        with self.run.active(fresh=fresh), self.stop:
            try:
                self.callbacks.setup()
                self.run.restore(resume)
                self.callbacks.check()
                self._prepare_step()
                self.run.accept()
                self.step_is_whole, self.run.is_failed = True, False
                self.log(opening(self))
                if not self.global_step and (layers := self._describe_layers()) is not None:
                    self.log(layers + "\n")
                self.callbacks.before_train()
                self._run_epochs()
            except StopTraining as reason:
                self.run.stopped_by = str(reason) or "requested by a callback"
                self.log(f"stopped after step {self.global_step}: {self.run.stopped_by}")
                self.total_steps = self.global_step
                self.callbacks.trigger_last()
            finally:
                if os.getpid() != process:  # a fork, made by the user's code: it must neither save nor upload
                    end_child()
                self.callbacks.after_train()
                if self.stop.pop_save_request():
                    self.log("SIGUSR1 ignored: the run is ending")
                if self.global_step > self.run.began_at:
                    self.log(self.times.report(self.callbacks.times()))
                if self.run.is_accepted and (where := closing(self)) is not None:
                    self.log(where)
                self.run.upload()
                self.run.keep_callback_states()
            self.run.require_directory()
            self.stop.check()

    def _of_chief(self, get: Callable[[], T]) -> T:
        """Return the result of a function on the chief, on all workers. All of them must call this at the same step."""
        return get()

    def _run_epochs(self) -> None:
        while self.global_step < self.total_steps or (
            self.callbacks.unfinished and self.global_step == self.total_steps
        ):
            # If a resumed run first has to finish its last step, it begins in the epoch of that step.
            completed = self.global_step - self.callbacks.unfinished
            self._set_step(self.global_step, epoch_num=max(completed, 0) // self.steps_per_epoch + 1)
            self.stop.check()
            self.callbacks.before_epoch()
            self.callbacks.repeat_step()
            while (step := self.counter.step) < self.run.next_boundary:
                self._advance(self.callbacks.next_step() - step)
                self.callbacks.trigger_step()
            self.callbacks.after_epoch()
            self.callbacks.trigger_epoch()
        self._save_if_asked()

    def _save_if_asked(self) -> None:
        """Save, if a signal asked for it. Called between two steps, when no callback is due."""
        if self.stop.pop_save_request():
            self.run.save_as_asked()

    def _advance(self, n: int) -> None:
        self._save_if_asked()
        start, begin = self.counter.step, self.times.clock()
        self.stop.check()
        self.run.check_between_steps(begin)
        self._set_step(start + self.run_steps(n))
        self.times.steps += self.times.clock() - begin

    def _set_step(
        self,
        step: int,
        *,
        epoch_num: int | None = None,
        outputs: Mapping[str, Any] | None = None,
        is_whole: bool = True,
    ) -> None:
        """Set the counters to a completed step. No other method sets them."""
        self.global_step, self.step_is_whole = step, is_whole
        self._epoch_num = self._epoch_num if epoch_num is None else epoch_num
        self.outputs = self.outputs if outputs is None else outputs

    @property
    def global_step(self) -> int:
        """The number of completed steps, including those before a resume.

        While TensorFlow traces a `before_run`, an `after_run` or a `train_step`, this is an int64 tensor: the number of
        steps completed before the current one, 0 in the first step. `epoch_num` and `local_step` are then tensors, too.
        """
        step: int = self.counter.read()
        return step

    @global_step.setter
    def global_step(self, step: int) -> None:
        self.counter.step = step

    @property
    def epoch_num(self) -> int:
        """The current epoch, from 1."""
        if tf.executing_eagerly():
            return self._epoch_num
        # In an iteration this is the epoch of the current step, elsewhere the epoch of the last completed step.
        completed = self.counter.traced_step
        completed = tf.maximum(self.global_step - 1, 0) if completed is None else completed
        epoch: int = completed // self.steps_per_epoch + 1
        return epoch

    @property
    def local_step(self) -> int:
        """The number of completed steps in the current epoch."""
        return self.global_step - (self.epoch_num - 1) * self.steps_per_epoch

    def _set_length(self, steps_per_epoch: int | None, max_epoch: int | None, max_steps: int | None) -> None:
        """Set the length of a run from the arguments of `train`, else from the config."""
        lengths = {"steps_per_epoch": steps_per_epoch, "max_epoch": max_epoch, "max_steps": max_steps}
        for name, value in lengths.items():
            if value is not None and (not isinstance(value, Integral) or isinstance(value, bool) or value < 0):
                raise ConfigError(f"{name} must be a whole number and not negative, got {value!r}")
        if steps_per_epoch == 0:
            raise ConfigError("steps_per_epoch must be at least 1")
        if max_steps is None and max_epoch is None and self.config is not None and self.datasets is not None:
            max_epoch = self.config["model.num_epochs"]
            max_steps = self.config["model.num_steps"] if max_epoch is None else None
        if steps_per_epoch is None:
            steps_per_epoch = self._epoch_length(is_required=max_epoch is not None)
        if max_epoch is not None and steps_per_epoch is None:
            name = "steps_per_epoch" if self.config is None else "trainer.steps_per_epoch"
            raise ConfigError(f"the length of an epoch is not known; set {name}, or the number of steps instead")
        self.max_steps = ENDLESS if max_steps is None else int(max_steps)
        self.max_epoch = ENDLESS if max_epoch is None else int(max_epoch)
        self.steps_per_epoch = (self.max_steps or 1) if steps_per_epoch is None else int(steps_per_epoch)
        self.total_steps = min(self.max_steps, self.max_epoch * self.steps_per_epoch)
        if self.config is not None:  # for schedules that last as long as the run
            self.config.batches_per_epoch = None if self.steps_per_epoch == ENDLESS else self.steps_per_epoch
            self.config.planned_steps = None if self.is_endless else self.total_steps

    def _epoch_length(self, *, is_required: bool) -> int | None:
        """Return the default length of an epoch; None if it is not known, or slow to find and not required."""
        return None if self.config is None else self.config["trainer.steps_per_epoch"]

    def _around_run(self) -> AbstractContextManager[None]:
        """Context manager around a run, for the setup and cleanup of subclasses."""
        return nullcontext()

    def _fit_logs(self) -> dict[str, Any]:
        """Return the training logs for Keras callbacks, as `keras.Model.fit` passes them: here the step's outputs."""
        return dict(self.outputs)

    def evaluate(self, dataset: str, batches: int = 0) -> Mapping[str, float] | None:
        """Evaluate on held-out data. The `Validation` callback calls this method.

        Args:
            dataset: the name of a dataset.
            batches: the number of batches; 0 for all.

        Returns:
            scalars by name, or None if a stop was requested before the end.
        """
        raise NotImplementedError(f"{type(self).__name__} must define evaluate() to be validated")

    def _rehearse(self, dataset: str, batches: int = 0) -> None:
        """Check before the first step that `evaluate` works, without changing any state. Does nothing by default."""

    def build(self, inputs: dict[str, Any], train_phase: bool) -> Mapping[str, Any]:
        """Build the model on a batch. Predictors and `InferenceRunner` call this method.

        Args:
            inputs: the batch, by name.
            train_phase: whether the model is built for training.

        Returns:
            tensors by name.
        """
        raise NotImplementedError(f"{type(self).__name__} must define build() for predictors and InferenceRunner")

    @property
    def can_evaluate(self) -> bool:
        """Whether the class overrides `evaluate`."""
        return type(self).evaluate is not Trainer.evaluate

    @property
    def is_compiled(self) -> bool:
        """Whether iterations, and the hooks around each of them, are traced by TensorFlow."""
        return False

    @property
    def is_endless(self) -> bool:
        """Whether the run has no planned end."""
        return self.total_steps == ENDLESS

    @property
    def outcome(self) -> Outcome:
        """The outcome of the run, as in run.json.

        The state is "running" before `after_train`, then "finished", "interrupted" or "failed", with the reason.
        """
        return self.run.outcome

    @property
    def model_variables(self) -> dict[str, Any]:
        """The model's variables by name: those in `state` that were not added by callbacks."""
        return {name: one for name, one in variables_in(self.state).items() if not name.startswith(CALLBACK_PREFIX)}

    @property
    def trained_variables(self) -> dict[str, Any]:
        """The trainable variables among `model_variables`, by name."""
        return {name: variable for name, variable in self.model_variables.items() if variable.trainable}

    def get_predictor(self, input_names: Sequence[str], output_names: Sequence[str]) -> Predictor:
        """Return a function from arrays to arrays that shares the training variables; see `Predictor`."""
        from prototrain.predictor import Predictor  # imports the model code, which not every trainer needs

        return Predictor(self, input_names, output_names)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Context manager for an evaluation: enters all `evaluation_scopes`."""
        with ExitStack() as stack:
            for scope in self.evaluation_scopes:
                stack.enter_context(scope())
            yield

    def require_experiment(self, who: str) -> Experiment:
        """Return the experiment, for the callback `who` that writes files.

        Raises:
            ExperimentError: the trainer has no experiment directory.
        """
        if self.experiment is None:
            raise ExperimentError(f"{who} needs a directory: give the trainer one with experiment='experiments/NAME'")
        return self.experiment

    def save(self) -> Path:
        """Write a checkpoint of the current step atomically.

        It replaces an earlier checkpoint of this step, unless a best saver such as `MinSaver` keeps it.

        Returns:
            the checkpoint's directory. A state that no run may resume from is written as ``failed-<step>``, which
            a resume ignores.

        Raises:
            ExperimentError: the trainer has no experiment directory.
            CheckpointError: the checkpoint cannot be written.
        """
        return self.run.start_save()()

    def log(self, text: str) -> None:
        """Print a line, without breaking a progress bar, and append it to the experiment's train.log."""
        self.run.log(text)

    def describe(self) -> dict[str, Any]:
        """Return the rows of the table that is printed at the start of a run, by name; None omits a row."""
        epochs = f"{-(-self.total_steps // self.steps_per_epoch)} of {self.steps_per_epoch} steps"
        return {
            "trainer": type(self).__name__,
            "steps": "until something stops the run" if self.is_endless else self.total_steps,
            "epochs": None if self.is_endless else epochs,
            "directory": self.experiment,
            "start": self.run.start_row(),
        }

    def _describe_layers(self) -> str | None:
        """Return a table of the model's layers, if there is a model."""
        return None

    def _facts(self) -> Facts:
        """Return the JSON-compatible facts that a checkpoint records about its run; see `experiment.facts`."""
        config = self.run.config()
        return {
            "config": {} if config is None else config.facts(),
            "sources": file_digests(sources_of(self)),
            "versions": versions(),
            "devices": [device.name for device in tf.config.list_logical_devices()],
            "trainer": type(self).__name__,
            "callbacks": sorted(self.callbacks.by_key),
        }

    def _load_first_weights(self) -> None:
        """Load the weights that a fresh run begins with, before its directory changes. Does nothing by default."""

    def _prepare_step(self) -> None:
        """Check and choose, after the restore, what the first step needs, such as whether XLA is faster."""

    def _around_restore(self, facts: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Context manager around a restore; `facts` is of the run that wrote the checkpoint."""
        return nullcontext()

    def _after_restore(self) -> list[str]:
        """Prepare to continue from a restored checkpoint; returns notes for the row "start" of the opening table."""
        return []

    def _origin(self) -> dict[str, Any]:
        """Return what environment.json has to repeat the run: the trainer's class, modules to copy, and callbacks."""
        module = type(self).__module__
        is_own = not module.startswith("prototrain.") and module != "__main__"
        home = home_of(sys.modules.get(module)) if is_own else None
        return {
            "trainer": f"{module}:{type(self).__qualname__}",
            "modules": {} if home is None else {module: str(home.resolve())},
            # Callbacks of private classes are not chosen by the user.
            "callbacks": [one.name for one in self.callbacks if not one.name.startswith("_")],
        }


class NoOpTrainer(Trainer):
    """Runs only the callbacks: for testing them, or for work that callbacks do alone."""

    def run_step(self) -> None:
        return None
