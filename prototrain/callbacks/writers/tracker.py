"""Base class of the writers for experiment trackers."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
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
    """A scalar at a step, or pictures (content of PNG files) in its place; `time` is in seconds since the epoch."""

    name: str
    step: int
    time: float
    value: float = 0.0
    pictures: tuple[bytes, ...] = ()


class Tracker(Monitor):
    """Sends scalars, pictures, the config and the outcome of a run to an experiment tracker.

    A thread sends new values every few seconds, so that a slow server does not slow the run down. If sending fails,
    that is reported once, and the values are sent later. Checkpoints hold the scalars that are not sent yet.

    A resumed run continues the same run of the tracker, whose id is in the checkpoint. It repeats the steps that a
    killed run made after its last checkpoint, and sends them again.

    A subclass defines `connect`, `send` and `close`.

    Args:
        seconds: how often something is sent.
        clock: returns seconds since the epoch.

    Attributes:
        extra: of prototrain, which brings what is needed.
    """

    # After the savers: a failed save is part of the outcome.
    priority = Priority.SAVE + 100
    extra: str

    def __init__(self, *, seconds: float = 5.0, clock: Callable[[], float] = time.time) -> None:
        self._seconds = seconds
        self._clock = clock
        self._run: str | None = None
        self._waiting: list[Point] = []
        self._under_way: list[Point] = []
        self._sending: Future[None] | None = None
        self._pool: ThreadPoolExecutor | None = None  # once it is connected
        self._failing = self._has_warned = False
        self._sent_at = clock()

    # -- for subclasses -----------------------------------------------------------------------------------------------

    def connect(self, run: str | None) -> str:
        """Continue a run of the tracker, or begin a new one, and send the config.

        Args:
            run: its id; None for a new one.

        Returns:
            the id of the run; a new one if the run that was asked for is gone.
        """
        raise NotImplementedError

    def send(self, points: Sequence[Point]) -> None:
        """Send scalars and pictures, in the order of their steps; in a thread. Sending some of them twice is harmless.

        Raises:
            Exception: the tracker has not taken all of them.
        """
        raise NotImplementedError

    def close(self, outcome: Outcome) -> None:
        """Tell the tracker that the run has ended, and how."""
        raise NotImplementedError

    # -- hooks --------------------------------------------------------------------------------------------------------

    def before_train(self) -> None:
        self._open()

    def put_scalars(self, values: Mapping[str, float], step: int) -> None:
        self._open()
        self._waiting += [Point(name, step, self._clock(), value) for name, value in values.items()]

    def put_event(self, prefix: str, event: Event) -> None:
        self._open()
        for value in event.summary.value:
            name = f"{prefix}/{value.tag}" if prefix else value.tag
            if value.metadata.plugin_data.plugin_name == "images":
                needed("PIL.Image", self.name, self.extra)
                # Before the pictures themselves stand their width and height.
                pictures = tuple(value.tensor.string_val[2:])
                self._waiting.append(Point(name, event.step, self._clock(), pictures=pictures))
            elif not self._has_warned:
                self._has_warned = True
                self.trainer.log(
                    f"{self.name} takes scalars and pictures only, not histograms and text such as {name!r}"
                )

    def flush(self) -> None:
        if self._pool is None or (self._sending is not None and not self._sending.done()):
            return
        self._take_result()
        if self._clock() - self._sent_at >= self._seconds:
            self._begin_sending(self._pool)

    def after_train(self) -> None:
        if self._pool is None:
            return
        with self._pool as pool:
            self._take_result()
            self._begin_sending(pool)
            self._take_result()
        self._pool = None
        if self._waiting:
            self.trainer.log(
                f"WARNING: {self.name}: run {self._run} lacks {len(self._waiting)} values from step "
                f"{self._waiting[0].step} on; a run that is resumed from a later checkpoint sends them"
            )
        try:
            self.close(self.trainer.outcome)
        except Exception as error:  # the run has ended as it has, whatever a tracker knows of it
            self.trainer.log(f"WARNING: {self.name}: run {self._run} was not told of the end: {in_one_line(error)}")

    def state_dict(self) -> dict[str, Any]:
        points = [point for point in [*self._under_way, *self._waiting] if not point.pictures]
        waiting = [[point.name, point.step, point.time, repr(point.value)] for point in points]
        return {"run": self._run, "waiting": waiting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._run = state["run"]
        self._waiting = [Point(name, step, at, float(value)) for name, step, at, value in state["waiting"]]

    # -- sending ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Connect, the first time. Callbacks that come earlier may record something in their `before_train`."""
        if self._pool is not None:
            return
        try:
            self._run = self.connect(self._run)
        except PrototrainError:
            raise
        except Exception as error:
            raise CallbackError(f"{self.name} cannot begin: {in_one_line(error)}") from error
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=self.name)

    def _begin_sending(self, pool: ThreadPoolExecutor) -> None:
        if self._waiting:
            self._under_way, self._waiting = self._waiting, []
            self._sent_at = self._clock()
            self._sending = pool.submit(self.send, self._under_way)

    def _take_result(self) -> None:
        """Wait for what is being sent; what was not taken waits for the next time."""
        if self._sending is None:
            return
        sending, self._sending = self._sending, None
        error = sending.exception()
        points, self._under_way = self._under_way, []
        if error is not None:
            self._waiting = points + self._waiting
            if not self._failing:
                self.trainer.log(
                    f"WARNING: {self.name} cannot send to run {self._run}: {in_one_line(error)}; trying again"
                )
        elif self._failing:
            self.trainer.log(f"{self.name} sends to run {self._run} again, nothing is missing")
        self._failing = error is not None


def needed(module: str, who: str, extra: str) -> Any:
    """Import a module that an extra of prototrain brings; a CallbackError names the extra if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise CallbackError(
            f"{who} needs {error.name}, which is not installed; pip install 'prototrain[{extra}]'"
        ) from None
