"""Scalars on their way from the run to whoever writes them down."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event

from prototrain.callbacks.base import Callback, Priority
from prototrain.callbacks.foreseen import Foreseen, no_such_scalar, recorded_twice
from prototrain.callbacks.pictures import histogram_summary, image_summary, text_summary
from prototrain.errors import CallbackError
from prototrain.system.files import LONGEST_NAME

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

HISTORY_LENGTH = 1000
_RESERVED = ("step", "time")


class Monitor(Callback):
    """A callback that also receives every scalar of the run.

    Override `put_scalar` or, to take those of a moment together, `put_scalars`; and `flush` if scalars are buffered.
    """

    priority: int = Priority.WRITE

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        takes = {"put_scalar", "put_scalars"}
        nearest = next(base for base in cls.__mro__ if takes & vars(base).keys())
        if "put_scalars" not in vars(nearest):  # another base's would go past the nearest `put_scalar`
            cls.put_scalars = Monitor.put_scalars  # type: ignore[method-assign]

    def put_scalar(self, name: str, value: float, step: int) -> None:
        """Take one scalar.

        Args:
            name: such as ``trn/loss``; what stands before the first slash is the part of the run it belongs to.
            value: a finite or non-finite Python float.
            step: the number of completed steps it was measured at.
        """
        raise NotImplementedError

    def put_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Take the scalars that were recorded at once, by name; each goes to `put_scalar` unless overridden."""
        for name, value in values.items():
            self.put_scalar(name, value, step)

    def put_event(self, prefix: str, event: Any) -> None:
        """Take a TensorBoard event that is not a scalar, such as an image; ignored unless overridden.

        Args:
            prefix: the part of the run it belongs to, such as "trn".
            event: an `Event` protocol buffer with step and summary.
        """

    def flush(self) -> None:
        """Write what is buffered. Called after the callbacks of a step have run, and before a checkpoint is written."""


class Monitors:
    """Fans scalars out to every `Monitor` in the callback list and remembers the last ones of each name.

    Attributes:
        foreseen: which of them will come, as far as that is known before the first step.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._history: dict[str, deque[tuple[int, float]]] = {}
        self._attached: list[Monitor] = []
        self._has_warned = False
        self._recorder: str | None = None
        self._recorded: dict[str, tuple[int, str]] = {}  # at which step a callback recorded each name last
        self.foreseen = Foreseen(trainer)

    def attach(self, monitors: Iterable[Monitor]) -> None:
        """Send what comes from now on to these monitors, in place of those before."""
        self._attached = list(monitors)
        self.foreseen.forget()
        self._recorded = {}
        self._has_warned = False

    @contextmanager
    def recorded_by(self, who: str) -> Iterator[None]:
        """Name what records scalars meanwhile, for the error about a name that is recorded twice."""
        outer, self._recorder = self._recorder, who
        try:
            yield
        finally:
            self._recorder = outer

    def put_scalar(self, name: str, value: Any) -> None:
        """Record a scalar of the current step.

        Args:
            name: such as ``trn/loss`` or ``vld/accuracy``.
            value: anything that `float` takes: a number, a NumPy or TensorFlow scalar.

        Raises:
            CallbackError: the value is not a single number, the name cannot be that of a scalar, or has a value at this
                step already.
        """
        self.put_scalars({name: value})

    def put_scalars(self, values: Mapping[str, Any], prefix: str = "") -> None:
        """Record scalars of the current step; many at once cost less than one by one.

        Args:
            values: as of `put_scalar`, by name.
            prefix: what the names start with, without the slash.

        Raises:
            CallbackError: as `put_scalar`; then none of them is recorded.
        """
        if prefix:
            values = {f"{prefix}/{name}": value for name, value in values.items()}
        for name in values:
            if name not in self._history:
                _check_name(name)
        numbers = {name: as_number(name, value) for name, value in values.items()}
        step = self._trainer.global_step
        if self._recorder is not None:
            for name in numbers:
                before, by = self._recorded.get(name, (-1, ""))
                if before == step:
                    raise recorded_twice(name, by, self._recorder, step)
                self._recorded[name] = (step, self._recorder)
        for name, number in numbers.items():
            if name not in self._history:
                self._history[name] = deque(maxlen=HISTORY_LENGTH)
            self._history[name].append((step, number))
        for monitor in self._attached:
            monitor.put_scalars(numbers, step)

    def put_image(self, name: str, images: Any) -> None:
        """Record pictures of the current step, for the monitors that write such: `TensorBoardWriter`.

        Args:
            name: such as ``samples`` or ``vld/samples``, as of a scalar.
            images: numbers from 0 to 255, of shape ``[height, width]``, ``[height, width, channels]``,
                ``[number, height, width]`` or ``[number, height, width, channels]``, with 1, 3 or 4 channels.

        Raises:
            CallbackError: they have another shape, or the name cannot be that of a scalar.
        """
        self.put_summary(image_summary(name, images))

    def put_histogram(self, name: str, values: Any) -> None:
        """Record how numbers, an array of any shape, are distributed, for the monitors that write such."""
        self.put_summary(histogram_summary(name, values))

    def put_text(self, name: str, text: str) -> None:
        """Record text, in Markdown, for the monitors that write such."""
        self.put_summary(text_summary(name, text))

    def put_summary(self, summary: Any, prefix: str = "") -> None:
        """Record what a `Summary` protocol buffer holds, at the current step: scalars as scalars, all else as events.

        Args:
            summary: of TensorBoard, or of `tf.summary`.
            prefix: what the names start with, without the slash.
        """
        for value in summary.value:
            name = f"{prefix}/{value.tag}" if prefix else value.tag
            if (scalar := scalar_in(value)) is not None:
                self.put_scalar(name, scalar)
            else:
                _check_name(name)
                part, _, tag = name.partition("/") if "/" in name else ("", "", name)
                event = Event(step=self._trainer.global_step)
                event.summary.value.add().CopyFrom(value)
                event.summary.value[0].tag = tag
                self.put_event(part, event)

    def put_event(self, prefix: str, event: Any) -> None:
        """Hand a TensorBoard event, such as an image, to the monitors that write such events.

        Args:
            prefix: the part of the run it belongs to, such as "trn".
            event: an `Event` protocol buffer with step and summary.
        """
        takers = [monitor for monitor in self._attached if type(monitor).put_event is not Monitor.put_event]
        if not takers and not self._has_warned and self._trainer.is_chief:
            self._has_warned = True
            tags = ", ".join(value.tag for value in event.summary.value)
            self._trainer.log(
                f"WARNING: no monitor in the list writes pictures, histograms and text, such as {tags!r}; add "
                "TensorBoardWriter()"
            )
        for monitor in takers:
            monitor.put_event(prefix, event)

    def flush(self) -> None:
        """Let every monitor write what it has buffered."""
        for monitor in self._attached:
            monitor.flush()

    def names(self) -> list[str]:
        """The names of all scalars seen so far, in the order of their first appearance."""
        return list(self._history)

    def history(self, name: str) -> list[tuple[int, float]]:
        """The last (step, value) pairs of a scalar, oldest first; empty if there were none."""
        return list(self._history.get(name, ()))

    def latest(self, name: str, *, at_step: int | None = None) -> float:
        """The newest value of a scalar.

        Args:
            name: its name.
            at_step: if given, the step that the value must belong to; a decision should not rest on a stale value.

        Raises:
            CallbackError: there is no such scalar, or its newest value is of another step.
        """
        if name not in self._history:
            raise CallbackError(no_such_scalar(name, self._history))
        step, value = self._history[name][-1]
        if at_step is not None and step != at_step:
            raise CallbackError(
                f"the newest {name!r} is of step {step}, not of step {at_step}; "
                "run what measures it at the same steps as what reads it"
            )
        return value

    def state_dict(self) -> dict[str, Any]:
        """The history, for a checkpoint."""
        return {name: [[step, _encode(value)] for step, value in pairs] for name, pairs in self._history.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the history of a checkpoint."""
        self._history = {
            name: deque(((int(step), float(value)) for step, value in pairs), maxlen=HISTORY_LENGTH)
            for name, pairs in state.items()
        }


def scalar_in(value: Any) -> Any:
    """The number in a value of a `Summary` protocol buffer, or None if it is something else, such as an image."""
    if value.metadata.plugin_data.plugin_name == "scalars":
        return tf.make_ndarray(value.tensor)
    return value.simple_value if value.HasField("simple_value") else None


def _check_name(name: Any) -> None:
    """Fail at a name that metrics.jsonl, or the directory that TensorBoard has for its prefix, cannot have.

    Raises:
        CallbackError: it says what is wrong with it.
    """
    if not isinstance(name, str):
        raise CallbackError(f"the name of a scalar must be a text, not {name!r}")
    if name in _RESERVED:
        raise CallbackError(f"a scalar cannot be called {name!r}; put a prefix before it, such as 'trn/{name}'")
    prefix, slash, _ = name.partition("/")
    if not (slash and prefix == "..") and "\0" not in name and not any("\ud800" <= sign <= "\udfff" for sign in name):
        size = len(prefix.encode()) if slash else 0
        if size <= LONGEST_NAME:
            return
        raise CallbackError(
            f"a scalar cannot be called {name[:40]!r}...: what stands before the slash is the name of a directory, and "
            f"has {size} bytes, not at most {LONGEST_NAME}"
        )
    raise CallbackError(f"a scalar cannot be called {name[:80]!r}: no directory of TensorBoard's could have its name")


def as_number(name: str, value: Any) -> float:
    """Turn a scalar of any kind into a float.

    Raises:
        CallbackError: it is not a single number.
    """
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise CallbackError(f"scalar {name!r} must be a single number, got {value!r}") from error


def _encode(value: float) -> float | str:
    # JSON has no word for these; float() reads them back from text.
    return value if math.isfinite(value) else repr(value)
