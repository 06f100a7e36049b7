"""Base class of writers for experiment trackers."""

from __future__ import annotations

import importlib
import io
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prototrain.callbacks.base import Priority
from prototrain.callbacks.monitor import Monitor
from prototrain.errors import CallbackError, PrototrainError
from prototrain.system.tracebacks import in_one_line

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

    from prototrain.experiment.record import Outcome


@dataclass(frozen=True)
class Point:
    """A scalar or images (of Pillow) at a step. `time` is in seconds since the epoch."""

    name: str
    step: int
    time: float
    value: float = 0.0
    pictures: tuple[Any, ...] = ()


class Tracker(Monitor):
    """Sends scalars, images, the config and the outcome of a run to an experiment tracker.

    A thread sends new values every few seconds. A failure is reported once, and the values are sent later. Values that
    are not sent when the run ends or is killed are only in metrics.jsonl. Checkpoints hold the id of the tracker's run,
    which a resumed run continues.

    Subclasses define `connect`, `send` and `close`.

    Attributes:
        extra: the extra of prototrain that installs the tracker's package.
        seconds: the minimum time, in seconds, between two transfers.
    """

    # Runs after the savers, since a failed save is part of the outcome.
    priority = Priority.SAVE + 100
    extra: str
    seconds = 5.0

    def __init__(self) -> None:
        self._run: str | None = None
        self._waiting: list[Point] = []
        self._sending: tuple[list[Point], Future[None]] | None = None
        self._pool: ThreadPoolExecutor | None = None  # None until connected
        self._is_failing = False
        self._sent_at = 0.0

    # -- for subclasses -----------------------------------------------------------------------------------------------

    def needed(self, module: str) -> Any:
        """Import a module of the tracker's extra; raise CallbackError, naming the extra, if it is missing."""
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            text = f"{self.name} needs {error.name}, which is not installed; pip install 'prototrain[{self.extra}]'"
            raise CallbackError(text) from None

    def connect(self, run: str | None) -> str:
        """Start or continue a run of the tracker and send the config.

        Args:
            run: the id of the run to continue; None to start a new run.

        Returns:
            The id of the run. It is a new id if the requested run no longer exists.
        """
        raise NotImplementedError

    def send(self, points: Sequence[Point]) -> None:
        """Send scalars and images, ordered by step. Called in a thread. Sending a point twice must be harmless.

        Raises:
            Exception: the tracker has not accepted all points.
        """
        raise NotImplementedError

    def close(self, outcome: Outcome) -> None:
        """Report the end and the outcome of the run."""
        raise NotImplementedError

    @property
    def title(self) -> str | None:
        """The name of the run: the name of the experiment directory, or None."""
        experiment = self.trainer.experiment
        return None if experiment is None else experiment.directory.resolve().name

    # -- hooks --------------------------------------------------------------------------------------------------------

    def before_train(self) -> None:
        self._open()

    def put_scalars(self, values: Mapping[str, float], step: int) -> None:
        self._open()
        self._waiting += [Point(name, step, time.time(), value) for name, value in values.items()]

    def put_event(self, prefix: str, event: Event) -> None:
        self._open()
        for value in event.summary.value:
            name = f"{prefix}/{value.tag}" if prefix else value.tag
            if value.metadata.plugin_data.plugin_name == "images":
                pillow, files = self.needed("PIL.Image"), value.tensor.string_val[2:]  # skip the width and the height
                pictures = tuple(pillow.open(io.BytesIO(file)) for file in files)
                self._waiting.append(Point(name, event.step, time.time(), pictures=pictures))
            else:
                self.trainer.run.say_once(f"WARNING: {self.name} takes scalars and pictures, not histograms and text")

    def flush(self) -> None:
        is_due = time.monotonic() - self._sent_at >= self.seconds
        if self._pool is not None and is_due and (self._sending is None or self._sending[1].done()):
            self._send(self._pool)

    def after_train(self) -> None:
        if self._pool is None:
            return
        with self._pool as pool:
            self._send(pool)
            self._take_result()
        self._pool = None
        if self._waiting:
            first, missing = self._waiting[0].step, len(self._waiting)
            self.trainer.log(f"WARNING: {self.name}: run {self._run} lacks {missing} values from step {first} on")
        try:
            self.close(self.trainer.outcome)
        except Exception as error:  # does not change the outcome of the run
            self.trainer.log(f"WARNING: {self.name}: run {self._run} was not told of the end: {in_one_line(error)}")

    def state_dict(self) -> dict[str, Any]:
        return {"run": self._run}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._run = state["run"]

    # -- sending ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Connect on the first call, which may come from another callback's `before_train`."""
        if self._pool is None:
            try:
                self._run = self.connect(self._run)
            except PrototrainError:
                raise
            except Exception as error:
                raise CallbackError(f"{self.name} cannot begin: {in_one_line(error)}") from error
            self._pool = ThreadPoolExecutor(1, thread_name_prefix=self.name)

    def _send(self, pool: ThreadPoolExecutor) -> None:
        self._take_result()
        if self._waiting:
            points, self._waiting = self._waiting, []
            self._sending = points, pool.submit(self.send, points)
            self._sent_at = time.monotonic()

    def _take_result(self) -> None:
        """Wait for the thread. After an error, the points are sent again with the next transfer."""
        if self._sending is None:
            return
        (points, future), self._sending = self._sending, None
        error = future.exception()
        if error is not None:
            self._waiting = points + self._waiting
            if not self._is_failing:
                text = f"cannot send to run {self._run}: {in_one_line(error)}; trying again"
                self.trainer.log(f"WARNING: {self.name} {text}")
        self._is_failing = error is not None
