"""What every writer for an experiment tracker has in common: one run there for one run here, whatever happens."""

from __future__ import annotations

import importlib
import json
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prototrain.callbacks.base import Priority, begins_anew
from prototrain.callbacks.monitor import Monitor
from prototrain.errors import CallbackError, PrototrainError
from prototrain.system.files import write_atomic
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

    @property
    def key(self) -> str:
        """What tells a series of scalars from one of pictures of the same name."""
        return f"{self.name} (pictures)" if self.pictures else self.name


class Tracker(Monitor):
    """Sends scalars, pictures, the config and the outcome of a run to an experiment tracker.

    A thread sends what there is, every few seconds, so that a slow server does not slow the run down. What a server
    does not take is reported once, kept, and sent later; what is still waiting when a checkpoint is written is in the
    checkpoint.

    A resumed run goes on in the same run of the tracker, whose id is in the checkpoint. Trackers do not forget: what
    they have of steps that a killed run has made behind its checkpoint is left as it is, and not sent again when these
    steps are made again. Up to where that is, is noted in ``trackers/`` of the experiment.

    A subclass defines `connect`, `send` and `close`.

    Args:
        seconds: how often something is sent.
        clock: returns seconds since the epoch.

    Attributes:
        extra: of prototrain, which brings what is needed.
        is_certain: whether the tracker has for certain what `send` has handed over. If not, only `close` makes it so,
            and what a killed run has made behind its checkpoint is sent again.
    """

    # The last one to hear of the end: whether a save has failed is a part of the outcome.
    priority = Priority.SAVE + 100
    extra: str
    is_certain = True

    def __init__(self, *, seconds: float = 5.0, clock: Callable[[], float] = time.time) -> None:
        self._seconds = seconds
        self._clock = clock
        self._run: str | None = None
        self._restored: list[Point] = []

    # -- for subclasses -----------------------------------------------------------------------------------------------

    def connect(self, run: str | None) -> str:
        """Go on in a run of the tracker, or begin a new one, and give it the config.

        Args:
            run: its id; None for a new one.

        Returns:
            the id of the run; another one than was asked for if that is gone.
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

    def setup(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._sending: Future[None] | None = None
        self._under_way: list[Point] = []
        self._waiting: list[Point] = []
        self._failing = self._has_warned = False
        self._sent_at = self._clock()
        if begins_anew(self):
            self._run, self._restored = None, []

    def before_train(self) -> None:
        self._open()

    def put_scalar(self, name: str, value: float, step: int) -> None:
        self._put(Point(name, step, self._clock(), value))

    def put_event(self, prefix: str, event: Event) -> None:
        for value in event.summary.value:
            name = f"{prefix}/{value.tag}" if prefix else value.tag
            if value.metadata.plugin_data.plugin_name == "images":
                needed("PIL.Image", self.name, self.extra)
                # Before the pictures themselves stand their width and height.
                self._put(Point(name, event.step, self._clock(), pictures=tuple(value.tensor.string_val[2:])))
            elif not self._has_warned:
                self._has_warned = True
                self.trainer.log(
                    f"{self.name} takes scalars and pictures only, not histograms and text such as {name!r}"
                )

    def flush(self) -> None:
        if self._pool is None or (self._sending is not None and not self._sending.done()):
            return
        self._take_result()
        if self._waiting and self._clock() - self._sent_at >= self._seconds:
            self._begin_sending(self._pool)

    def after_train(self) -> None:
        if self._pool is None:
            return
        with self._pool as pool:
            self._take_result()
            if self._waiting:
                self._begin_sending(pool)
                self._take_result()
        self._pool = None
        if self._waiting:
            self.trainer.log(
                f"WARNING: {self.name}: run {self._run} lacks {len(self._waiting)} values from step "
                f"{self._waiting[0].step} on; a run that goes on from a checkpoint which was written since then sends "
                "them"
            )
        try:
            self.close(self.trainer.outcome)
        except Exception as error:  # the run has ended as it has, whatever a tracker knows of it
            self.trainer.log(f"WARNING: {self.name}: run {self._run} was not told of the end: {in_one_line(error)}")
        else:
            self._write_note()

    def state_dict(self) -> dict[str, Any]:
        points = [point for point in [*self._under_way, *self._waiting] if not point.pictures]
        waiting = [[point.name, point.step, point.time, repr(point.value)] for point in points]
        return {"run": self._run, "waiting": waiting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._run = state["run"]
        self._restored = [Point(name, step, at, float(value)) for name, step, at, value in state["waiting"]]

    # -- sending ------------------------------------------------------------------------------------------------------

    def _put(self, point: Point) -> None:
        self._open()
        if point.step > self._known.get(point.key, -1):
            self._waiting.append(point)

    def _open(self) -> None:
        """Connect, the first time. Callbacks that come earlier may record something in their `before_train`."""
        if self._pool is not None:
            return
        before = self._run
        try:
            self._run = self.connect(before)
        except PrototrainError:
            raise
        except Exception as error:
            raise CallbackError(f"{self.name} cannot begin: {in_one_line(error)}") from error
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=self.name)
        self._steps = self._read_note() if self._run == before else {}
        self._known = dict(self._steps)
        newest, step = max(self._known.values(), default=0), self.trainer.global_step
        if newest > step:
            self.trainer.log(
                f"{self.name}: run {self._run} has what an earlier attempt recorded up to step {newest}; what is made "
                f"again from step {step} to there is not sent again"
            )
        restored, self._restored = self._restored, []
        for point in restored:
            self._put(point)

    def _begin_sending(self, pool: ThreadPoolExecutor) -> None:
        self._under_way, self._waiting = self._waiting, []
        self._sent_at = self._clock()
        self._sending = pool.submit(self._send_and_note, self._under_way)

    def _send_and_note(self, points: list[Point]) -> None:
        self.send(points)
        self._steps |= {point.key: point.step for point in points}
        if self.is_certain:
            self._write_note()

    def _write_note(self) -> None:
        if self._note is not None:
            # Without the note nothing is missing: what is made again after a kill may only be sent twice.
            with suppress(OSError):
                self._note.parent.mkdir(exist_ok=True)
                write_atomic(self._note, json.dumps({"run": self._run, "steps": self._steps}) + "\n", durable=False)

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

    # -- what was sent, for the case of a kill ------------------------------------------------------------------------

    @property
    def _note(self) -> Path | None:
        experiment = self.trainer.experiment
        name = re.sub(r"\W", "_", self.state_key or type(self).__name__)
        return None if experiment is None else experiment.trackers / f"{name}.json"

    def _read_note(self) -> dict[str, int]:
        """The last step that the tracker has of each series; empty if that is not known."""
        try:
            found = json.loads(self._note.read_bytes()) if self._note is not None else {}
            return {key: int(step) for key, step in found["steps"].items()} if found["run"] == self._run else {}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return {}


def needed(module: str, who: str, extra: str) -> Any:
    """Import what an extra brings.

    Args:
        module: its name.
        who: needs it.
        extra: of prototrain.

    Raises:
        CallbackError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise CallbackError(
            f"{who} needs {error.name}, which is not installed; pip install 'prototrain[{extra}]'"
        ) from None
