"""Base class of the writers for experiment trackers."""

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
    """A scalar at a step, or pictures (contents of PNG files); `time` is in seconds since the epoch."""

    name: str
    step: int
    time: float
    value: float = 0.0
    pictures: tuple[bytes, ...] = ()


class Tracker(Monitor):
    """Sends scalars, pictures, the config and the outcome of a run to an experiment tracker.

    A thread sends new values every few seconds. If that fails, it is reported once, and the values are sent later.
    Checkpoints hold the scalars that are not sent yet, and the id of the tracker's run, which a resumed run continues.

    A subclass defines `connect`, `send` and `close`.

    Attributes:
        extra: of prototrain, which installs the tracker's package.
        seconds: between two times that something is sent.
    """

    # After the savers: a failed save is part of the outcome.
    priority = Priority.SAVE + 100
    extra: str
    seconds = 5.0

    def __init__(self) -> None:
        self._run: str | None = None
        self._waiting: list[Point] = []
        self._sending: tuple[list[Point], Future[None]] | None = None
        self._pool: ThreadPoolExecutor | None = None  # once it is connected
        self._is_failing = False
        self._sent_at = 0.0

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

    @property
    def title(self) -> str | None:
        """The name of the run: that of the experiment's directory."""
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
                needed("PIL.Image", self.name, self.extra)
                pictures = tuple(value.tensor.string_val[2:])  # after the width and the height
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
            self.trainer.log(
                f"WARNING: {self.name}: run {self._run} lacks {len(self._waiting)} values from step "
                f"{self._waiting[0].step} on; a run that is resumed from a later checkpoint sends them"
            )
        try:
            self.close(self.trainer.outcome)
        except Exception as error:  # which does not change the outcome
            self.trainer.log(f"WARNING: {self.name}: run {self._run} was not told of the end: {in_one_line(error)}")

    def state_dict(self) -> dict[str, Any]:
        points = [*(self._sending[0] if self._sending else ()), *self._waiting]
        scalars = [[one.name, one.step, one.time, repr(one.value)] for one in points if not one.pictures]
        return {"run": self._run, "waiting": scalars}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._run = state["run"]
        self._waiting = [Point(name, step, at, float(value)) for name, step, at, value in state["waiting"]]

    # -- sending ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Connect, the first time. Callbacks that come earlier may record something in their `before_train`."""
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
        """Wait for the thread; points that the tracker has not taken are sent the next time."""
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


def needed(module: str, who: str, extra: str) -> Any:
    """Import a module that an extra of prototrain installs; a CallbackError names the extra if it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise CallbackError(
            f"{who} needs {error.name}, which is not installed; pip install 'prototrain[{extra}]'"
        ) from None


def opened(picture: bytes) -> Any:
    """The content of a PNG file as a picture of Pillow's."""
    from PIL import Image

    return Image.open(io.BytesIO(picture))
