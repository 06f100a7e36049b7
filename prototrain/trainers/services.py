"""What a trainer offers besides its loop: printing, evaluating, saving, and saying what it is."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from tqdm import tqdm

from prototrain.checkpoint.state import OF_CALLBACKS, StateEntries
from prototrain.errors import ExperimentError
from prototrain.experiment import Experiment, home_of, source_of
from prototrain.predictor import Predictor

if TYPE_CHECKING:
    from prototrain.callbacks.group import CallbackGroup
    from prototrain.config import Config
    from prototrain.trainers.session import Storage

ENDLESS = sys.maxsize


class TrainerServices:
    """The part of a trainer that has nothing to do with the order of things.

    Attributes:
        experiment: the directory of the run, or None.
        state: what a checkpoint holds, by name.
        is_chief: whether this process writes the experiment directory.
        evaluation_scopes: functions that return a context manager; an evaluation takes place inside of them.
        datasets: datasets by name, where a subclass has any.
        watched: tensors of the last step by name, if a callback watches them; see `Callback.watches`.
        summary_events: TensorBoard events that `tf.summary` calls in the last step made, if a callback watches it.
        element_spec: what a training batch looks like, by name, where that is known.
        optimizer: the Keras optimizer, where a subclass has one.
        keras_model: the compiled Keras model, where a subclass trains one.
        config: the configuration, where a subclass has one; it is saved with the experiment.
    """

    datasets: Mapping[str, Any] | None = None
    element_spec: Mapping[str, Any] | None = None
    watched: Mapping[str, Any] = MappingProxyType({})
    summary_events: Sequence[Any] = ()
    optimizer: Any = None
    keras_model: Any = None
    config: Config | None = None
    experiment: Experiment | None
    state: dict[str, Any]
    storage: Storage
    callbacks: CallbackGroup
    is_chief: bool
    steps_per_epoch: int
    total_steps: int
    step_is_whole: bool
    evaluation_scopes: list[Callable[[], AbstractContextManager[None]]]

    # -- beside training ----------------------------------------------------------------------------------------------

    def evaluate(self, dataset: str, batches: int = 0) -> Mapping[str, float] | None:
        """Measure scalars on held-out data; what the `Validation` callback calls.

        Args:
            dataset: its name, such as "vld".
            batches: how many batches; 0 for all.

        Returns:
            the scalars by name, or None if a stop was requested before the end.
        """
        raise NotImplementedError(f"{type(self).__name__} must define evaluate() to be validated")

    def build(self, inputs: dict[str, Any], train_phase: bool) -> Mapping[str, Any]:
        """Build the model on a batch; what predictors and `InferenceRunner` call.

        Args:
            inputs: the batch.
            train_phase: whether to train on it.

        Returns:
            tensors by name.
        """
        raise NotImplementedError(f"{type(self).__name__} must define build() for predictors and InferenceRunner")

    @property
    def can_evaluate(self) -> bool:
        """Whether a subclass has defined `evaluate`."""
        return type(self).evaluate is not TrainerServices.evaluate

    @property
    def is_compiled(self) -> bool:
        """Whether the hooks along with an iteration are traced."""
        return False

    def setup_scope(self) -> AbstractContextManager[Any]:
        """What callbacks are set up in; a subclass decides with it where the variables lie that they make."""
        return nullcontext()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """What held-out data is measured in: all `evaluation_scopes`."""
        with ExitStack() as stack:
            for scope in self.evaluation_scopes:
                stack.enter_context(scope())
            yield

    @property
    def model_variables(self) -> dict[str, Any]:
        """The variables of what is trained, by name: those in `state` that no callback has added."""
        entries = StateEntries(self.state).variables
        found = {name: entry for name, entry in entries.items() if isinstance(entry, tf.Variable | keras.Variable)}
        return {name: variable for name, variable in found.items() if not name.startswith(OF_CALLBACKS)}

    def get_predictor(self, input_names: Sequence[str], output_names: Sequence[str]) -> Predictor:
        """A function from arrays to arrays that shares the training variables; see `Predictor`.

        Args:
            input_names: names in a batch, in the order in which the function takes them.
            output_names: names in the model's mapping, in the order in which the function returns them.

        Raises:
            ModelError: there is no such input.
        """
        return Predictor(self, input_names, output_names)

    def reject_state(self) -> None:
        """Say that what is in `state` must not be resumed from: the next save goes aside."""
        self.step_is_whole = False

    @property
    def is_endless(self) -> bool:
        """Whether the run has no planned end."""
        return self.total_steps == ENDLESS

    # -- what is printed ----------------------------------------------------------------------------------------------

    def log(self, text: str) -> None:
        """Print a line, past a progress bar if there is one, and add it to the experiment's train.log."""
        # A disk that is full must not end the run, least of all by the line that reports it.
        with suppress(OSError):
            tqdm.write(text)
        self._write_to_log(text)

    def record_failure(self, error: Exception) -> None:
        """Add the whole of an error to train.log; whoever catches it shows as much as is of use."""
        self._write_to_log("".join(traceback.format_exception(error)))

    def _write_to_log(self, text: str) -> None:
        if self.experiment is not None and self.is_chief and self.experiment.directory.is_dir():
            with suppress(OSError), open(self.experiment.log, "a", encoding="utf-8") as file:
                file.write(text + "\n")

    def describe(self) -> dict[str, Any]:
        """What the table at the start of a run says, by name; rows that are None are left out."""
        endless = self.is_endless
        epochs = None if endless else f"{-(-self.total_steps // self.steps_per_epoch)} of {self.steps_per_epoch} steps"
        return {
            "trainer": type(self).__name__,
            "steps": "until something stops the run" if endless else self.total_steps,
            "epochs": epochs,
            "directory": self.experiment,
            "start": self.storage.resume_line(),
        }

    def describe_more(self) -> list[str]:
        """Further tables for the start of a run."""
        return []

    # -- what lasts ---------------------------------------------------------------------------------------------------

    def save(self) -> Path:
        """Write a checkpoint of the present step, whole or not at all; one that exists already stays as it is.

        Returns:
            its directory. A state that a failed step left half-done is written aside, where no resume finds it.

        Raises:
            ExperimentError: the trainer has no experiment directory.
            CheckpointError: it cannot be written.
        """
        return self.start_save()()

    def start_save(self) -> Callable[[], Path]:
        """Begin to write a checkpoint of the present step; training can go on while the rest is written.

        Returns:
            a function that waits for the end of it and returns the directory; it raises what `save` raises.

        Raises:
            ExperimentError, CheckpointError: as `save`.
        """
        return self.storage.start_save()

    def provenance(self) -> dict[str, Any]:
        """What must not change between a run and its bit-exact continuation, as JSON can hold it, by name."""
        return self.storage.provenance()

    def resume_caveats(self) -> list[str]:
        """Why what has just been restored is not exactly what was saved, in words."""
        return []

    def sources(self) -> list[Path]:
        """The files and packages that the experiment keeps a copy of: where the trainer was written, and the script."""
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        script = Path(main) if main and main.endswith(".py") else None
        own = None if type(self).__module__.startswith("prototrain.") else source_of(self)
        found = [path for path in (own, script) if path is not None and path.is_file()]
        return list(dict.fromkeys(path.resolve() for path in found))

    def origin(self) -> dict[str, Any]:
        """What a run is repeated from and compared with: a part of environment.json, as JSON can hold it.

        Returns:
            "trainer", its class; "modules", where the modules lie that `sources` has copies of, by name; "callbacks";
            and of "provenance" what no other file says.
        """
        own = type(self).__module__
        home = None if own.startswith("prototrain.") or own == "__main__" else home_of(sys.modules.get(own))
        return {
            "trainer": f"{own}:{type(self).__qualname__}",
            "modules": {} if home is None else {own: str(home.resolve())},
            # One of a private class is not of the user's choice.
            "callbacks": [callback.name for callback in self.callbacks if not callback.name.startswith("_")],
            "provenance": {name: value for name, value in self.provenance().items() if name != "config"},
        }

    def require_experiment(self, who: str) -> Experiment:
        """The experiment, for a callback that writes files.

        Raises:
            ExperimentError: there is none.
        """
        if self.experiment is None:
            raise ExperimentError(f"{who} needs a directory: give the trainer one with experiment='experiments/NAME'")
        return self.experiment
