"""Monitors: callbacks that receive scalars and summaries."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event

from prototrain.callbacks.base import Callback, Priority, innermost
from prototrain.errors import CallbackError
from prototrain.system.terminal import did_you_mean

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

Mode = Literal["min", "max"]

HISTORY_LENGTH = 1000
_RESERVED = ("step", "time")


class Best:
    """Tracks the best value of a scalar and its step. NaN is never better.

    Args:
        mode: "min" if smaller is better, "max" if larger is better.
        min_delta: the minimum change that counts as an improvement.

    Attributes:
        value, step: the best value and its step; None before the first value.

    Raises:
        CallbackError: `mode` is neither "min" nor "max", or `min_delta` is negative.
    """

    def __init__(self, mode: Mode, *, min_delta: float = 0.0) -> None:
        if mode not in ("min", "max"):
            raise CallbackError(f'mode must be "min" or "max", got {mode!r}')
        if not min_delta >= 0:
            raise CallbackError(f"min_delta must be at least 0, got {min_delta!r}")
        self.mode = mode
        self.min_delta = min_delta
        self.value: float | None = None
        self.step: int | None = None

    def is_better(self, value: float) -> bool:
        """Return whether `value` improves on the best value by more than `min_delta`."""
        return self.improves(value, math.nan if self.value is None else self.value)

    def improves(self, value: float, old: float) -> bool:
        """Return whether `value` improves on `old` by more than `min_delta`. Any number improves on NaN."""
        if math.isnan(value) or math.isnan(old):
            return not math.isnan(value)
        return (old - value if self.mode == "min" else value - old) > self.min_delta

    def update(self, value: float, step: int) -> bool:
        """Record a value and return whether it is the new best."""
        if not self.is_better(value):
            return False
        self.value, self.step = value, step
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the value and step as JSON values."""
        return {"value": self.value, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.value = None if state["value"] is None else float(state["value"])
        self.step = None if state["step"] is None else int(state["step"])


class Monitor(Callback):
    """Base class of callbacks that receive every scalar of the run.

    Override `put_scalar`, or `put_scalars` to receive scalars in groups. Override `flush` if scalars are buffered.
    """

    priority: int = Priority.WRITE

    def put_scalar(self, name: str, value: float, step: int) -> None:
        """Receive one scalar.

        Args:
            name: the scalar's name, such as ``trn/loss``. The prefix before the first slash names the part of the run.
            value: a Python float, possibly NaN or infinite.
            step: the number of completed steps at the time of the measurement.
        """
        raise CallbackError(f"{self.name} must define put_scalar() or put_scalars()")

    def put_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Receive scalars recorded together, by name. Calls `put_scalar` for each by default."""
        for name, value in values.items():
            self.put_scalar(name, value, step)

    def put_event(self, prefix: str, event: Any) -> None:
        """Receive a TensorBoard event that is not a scalar, such as an image. Does nothing by default.

        Args:
            prefix: the part of the run, such as "trn".
            event: an `Event` protocol buffer with a step and a summary.
        """

    def flush(self) -> None:
        """Write buffered data. Called after the callbacks of each step and before a checkpoint is written."""


class Monitors:
    """Passes scalars to every `Monitor` in the callback list and keeps a history of each scalar."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._history: dict[str, deque[tuple[int, float]]] = {}
        self._extremes: dict[str, dict[Mode, Best]] = {}
        self.attach(())

    def attach(self, monitors: Iterable[Monitor]) -> None:
        """Start a run with these monitors."""
        self._attached = list(monitors)
        self._source: str | None = None  # the label of the callback whose hook is running
        self._recorded: dict[str, tuple[int, str]] = {}  # step and source of the latest value in this run, by name

    @contextmanager
    def recorded_by(self, source: str) -> Iterator[None]:
        """Context manager that attributes recorded scalars to a callback, by its label."""
        outer, self._source = self._source, source
        try:
            yield
        finally:
            self._source = outer

    def put_scalar(self, name: str, value: Any) -> None:
        """Record a scalar at the current step.

        Args:
            name: the scalar's name, such as ``trn/loss`` or ``vld/accuracy``.
            value: a number, or a NumPy or TensorFlow scalar.

        Raises:
            CallbackError: the value is not a single number, the name is not allowed, or the scalar already has a value
                at this step.
        """
        self.put_scalars({name: value})

    def put_scalars(self, values: Mapping[str, Any], prefix: str = "") -> None:
        """Record scalars at the current step, all or none; see `put_scalar`. The names get `prefix` and a slash."""
        if prefix:
            values = {f"{prefix}/{name}": value for name, value in values.items()}
        step, source = self._trainer.global_step, self._source
        for name in values:
            if name not in self._history:
                _check_name(name)
            before, first = self._recorded.get(name, (-1, ""))
            if before == step and source is not None:
                who = source if first == source else f"{first} and {source}"
                text = f"{who}: {name!r} already has a value at step {step}; give one of them another name or prefix="
                raise CallbackError(text)
        numbers = {name: as_number(name, value) for name, value in values.items()}
        for name, number in numbers.items():
            if name not in self._history:
                self._history[name], self._extremes[name] = deque(maxlen=HISTORY_LENGTH), _extremes()
            history = self._history[name]
            if source is not None:
                self._recorded[name] = step, source
                if history and history[-1][0] == step:
                    history.pop()  # a resumed run called the callbacks of its step again
            history.append((step, number))
            for best in self._extremes[name].values():
                best.update(number, step)
        for monitor in self._attached:
            monitor.put_scalars(numbers, step)

    def put_image(self, name: str, images: Any) -> None:
        """Record images at the current step, for monitors such as `TensorBoardWriter`.

        Args:
            name: the name of the images, such as ``samples`` or ``vld/samples``.
            images: numbers from 0 to 255, of shape ``[height, width]``, ``[height, width, channels]``,
                ``[number, height, width]`` or ``[number, height, width, channels]``, with 1, 3 or 4 channels.

        Raises:
            CallbackError: the shape is not supported, or the name is not allowed.
        """
        from prototrain.callbacks.pictures import image_summary  # few runs have pictures

        self.put_summary(image_summary(name, images))

    def put_histogram(self, name: str, values: Any) -> None:
        """Record a histogram of an array of any shape."""
        from prototrain.callbacks.pictures import histogram_summary

        self.put_summary(histogram_summary(name, values))

    def put_text(self, name: str, text: str) -> None:
        """Record Markdown text."""
        from prototrain.callbacks.pictures import text_summary

        self.put_summary(text_summary(name, text))

    def put_summary(self, summary: Any, prefix: str = "") -> None:
        """Record a `Summary` protocol buffer at the current step. Values that are not scalars become events."""
        for value in summary.value:
            name = f"{prefix}/{value.tag}" if prefix else value.tag
            if (scalar := scalar_in(value)) is not None:
                self.put_scalar(name, scalar)
                continue
            _check_name(name)
            part, tag = split_name(name)
            event = Event(step=self._trainer.global_step, summary={"value": [value]})
            event.summary.value[0].tag = tag
            self.put_event(part, event)

    def put_event(self, prefix: str, event: Any) -> None:
        """Pass a TensorBoard event, such as an image, to the monitors that override `put_event`."""
        takers = [monitor for monitor in self._attached if type(monitor).put_event is not Monitor.put_event]
        if not takers and self._trainer.is_chief:
            self._trainer.run.log_once(
                "WARNING: no monitor in the list writes pictures, histograms and text; add TensorBoardWriter()"
            )
        for monitor in takers:
            monitor.put_event(prefix, event)

    def flush(self) -> None:
        """Flush every monitor."""
        for monitor in self._attached:
            monitor.flush()

    def names(self) -> list[str]:
        """Return the names of all recorded scalars, in the order of their first value."""
        return list(self._history)

    def history(self, name: str) -> list[tuple[int, float]]:
        """Return the last `HISTORY_LENGTH` (step, value) pairs of a scalar, oldest first."""
        return list(self._history.get(name, ()))

    def latest(self, name: str, *, at_step: int | None = None) -> float:
        """Return the latest value of a scalar.

        Raises:
            CallbackError: there is no such scalar, or `at_step` is given and the latest value is of another step.
        """
        if name not in self._history:
            names = sorted(self._history)
            known = f"{did_you_mean(name, names) or ';'} there are: {', '.join(names) or 'none yet'}"
            raise CallbackError(f"there is no scalar {name!r}{known}")
        step, value = self._history[name][-1]
        if at_step is not None and step != at_step:
            raise CallbackError(f"the latest value of {name!r} is from step {step}; record one at step {at_step}, too")
        return value

    def best(self) -> dict[str, tuple[int, float]]:
        """Return the step and the best value of scalars, by name.

        Includes the losses on held-out data and the scalars that a saver or `EarlyStopping` watches.
        """
        losses = [name for name in self._history if name.endswith("/loss") and not name.startswith("trn/")]
        modes: dict[str, Mode] = dict.fromkeys(losses, "min")
        for callback in map(innermost, self._trainer.callbacks):
            if isinstance(best := getattr(callback, "best", None), Best):
                modes[callback.stat] = best.mode  # type: ignore[attr-defined]
        bests = {name: self._extremes[name][mode] for name, mode in modes.items() if name in self._extremes}
        return {n: (best.step, best.value) for n, best in bests.items() if best.step is not None}  # type: ignore[misc]

    def state_dict(self) -> dict[str, Any]:
        """Return the history and the extremes of all scalars as JSON values."""
        bests = {name: {mode: best.state_dict() for mode, best in of.items()} for name, of in self._extremes.items()}
        return {name: {"history": [*map(list, pairs)], **bests[name]} for name, pairs in self._history.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._history, self._extremes = {}, {}
        for name, of_scalar in state.items():
            pairs = ((int(step), float(value)) for step, value in of_scalar["history"])
            self._history[name] = deque(pairs, maxlen=HISTORY_LENGTH)
            self._extremes[name] = _extremes()
            for mode, best in self._extremes[name].items():
                best.load_state_dict(of_scalar[mode])


def _extremes() -> dict[Mode, Best]:
    return {"min": Best("min"), "max": Best("max")}


def split_name(name: str) -> tuple[str, str]:
    """Split a scalar's name into its prefix and the rest. The prefix may be empty."""
    prefix, slash, rest = name.partition("/")
    return (prefix, rest) if slash else ("", name)


def scalar_in(value: Any) -> Any:
    """Return the number in a value of a `Summary` protocol buffer, or None if the value is not a scalar."""
    if value.metadata.plugin_data.plugin_name == "scalars":
        return tf.make_ndarray(value.tensor)
    return value.simple_value if value.HasField("simple_value") else None


def _check_name(name: Any) -> None:
    """Raise CallbackError for a name that metrics.jsonl or the directory `summaries` cannot hold."""
    if not isinstance(name, str) or not name.isprintable():
        raise CallbackError(f"the name of a scalar must be a printable text, not {name!r}")
    if name in _RESERVED or name.startswith("../"):
        raise CallbackError(f"a scalar cannot be called {name!r}; put a prefix before it, such as 'trn/{name}'")


def as_number(name: str, value: Any) -> float:
    """Convert a scalar to a float; raise CallbackError if it is not a single number."""
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise CallbackError(f"scalar {name!r} must be a single number, got {value!r}") from error
