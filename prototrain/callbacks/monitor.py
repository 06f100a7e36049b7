"""Monitors: callbacks that receive the scalars of a run."""

from __future__ import annotations

import difflib
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event

from prototrain.callbacks.base import Callback, Priority, innermost
from prototrain.errors import CallbackError

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

Mode = Literal["min", "max"]

HISTORY_LENGTH = 1000
_RESERVED = ("step", "time")
_UNANNOUNCED = ("checkpoint/", "cluster/", "hyper/", "perf/")  # recorded without `announce`
_CALLS_FUNCTIONS = ("CallbackFactory", "LambdaCallback", "ProcessTensors", "RunOp")


class Best:
    """The best value of a scalar so far, and the step it was measured at.

    A value that is not a number is never better than another one.

    Args:
        mode: whether smaller ("min") or larger ("max") is better.
        min_delta: by how much, at least, a value must be better to count.

    Attributes:
        value: the best value, or None before the first.
        step: the step it belongs to, or None.

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
        """Whether `value` beats the best one by more than `min_delta`."""
        if math.isnan(value):
            return False
        if self.value is None:
            return True
        gain = self.value - value if self.mode == "min" else value - self.value
        return gain > self.min_delta

    def update(self, value: float, step: int) -> bool:
        """Take a value into account.

        Returns:
            whether it is the best one now.
        """
        if not self.is_better(value):
            return False
        self.value, self.step = value, step
        return True

    def state_dict(self) -> dict[str, Any]:
        """Value and step, as JSON can hold them."""
        infinite = self.value is not None and math.isinf(self.value)
        return {"value": repr(self.value) if infinite else self.value, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.value = None if state["value"] is None else float(state["value"])
        self.step = None if state["step"] is None else int(state["step"])


class Monitor(Callback):
    """A callback that also receives every scalar of the run.

    Override `put_scalar` or, to take those of a moment together, `put_scalars`; and `flush` if scalars are buffered.
    """

    priority: int = Priority.WRITE

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
    """Passes scalars on to every `Monitor` in the callback list and remembers the last ones of each name."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._history: dict[str, deque[tuple[int, float]]] = {}
        self.attach(())

    def attach(self, monitors: Iterable[Monitor]) -> None:
        """Begin a run with these monitors."""
        self._attached = list(monitors)
        self._has_warned = False
        self._recorder: str | None = None  # the callback that runs now
        self._recorded: dict[str, tuple[int, str]] = {}  # the step and the callback of each name's last value
        self._announced: dict[str, Callback] = {}  # by the scalar's name; "vld/*" if only its prefix is known

    @contextmanager
    def recorded_by(self, who: str) -> Iterator[None]:
        """Name the callback that records scalars in this block, for the error about a second value of a name."""
        outer, self._recorder = self._recorder, who
        try:
            yield
        finally:
            self._recorder = outer

    # -- before the first step ----------------------------------------------------------------------------------------

    def announce(self, callback: Callback, prefix: str, names: Iterable[str] = ("*",)) -> None:
        """Announce the scalars that a callback will record; called in its `check_run` or before.

        Args:
            callback: records them.
            prefix: the start of their names, without the slash.
            names: their names without it; by default they are not known yet.

        Raises:
            CallbackError: another callback records one of them as well.
        """
        for name in (f"{prefix}/{inner}" for inner in names):
            other = self._announced.setdefault(name, callback)
            if other is not callback and not name.endswith("/*"):
                raise _recorded_twice(name, other.name, callback.name)

    def require(self, callback: Callback, name: str) -> None:
        """Check in `check_run` that the scalar which a callback decides by will be recorded.

        Code of the user may record any scalar; then a name that looks mistyped gives a warning.

        Raises:
            CallbackError: nothing records it.
        """
        open_prefixes = tuple(one[:-1] for one in self._announced if one.endswith("/*"))
        if name in self._history or name in self._announced or name.startswith((*_UNANNOUNCED, *open_prefixes)):
            return
        said = f"{callback.name}: {_no_such_scalar(name, self._announced)}"
        if not _is_of_user(self._trainer) and not any(map(runs_code_of_user, self._trainer.callbacks)):
            raise CallbackError(said)
        if "did you mean" in said:
            self._trainer.run.say_once(f"WARNING: {said}")

    # -- recording ----------------------------------------------------------------------------------------------------

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
                    raise _recorded_twice(name, by, self._recorder, f" at step {step}")
                self._recorded[name] = (step, self._recorder)
        for name, number in numbers.items():
            if name not in self._history:
                self._history[name] = deque(maxlen=HISTORY_LENGTH)
            values_of = self._history[name]
            if values_of and values_of[-1][0] == step and self._recorder is not None:
                values_of.pop()  # a resumed run has called the callbacks of its step again
            values_of.append((step, number))
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
        from prototrain.callbacks.pictures import image_summary  # few runs record pictures

        self.put_summary(image_summary(name, images))

    def put_histogram(self, name: str, values: Any) -> None:
        """Record how numbers, an array of any shape, are distributed, for the monitors that write such."""
        from prototrain.callbacks.pictures import histogram_summary

        self.put_summary(histogram_summary(name, values))

    def put_text(self, name: str, text: str) -> None:
        """Record text, in Markdown, for the monitors that write such."""
        from prototrain.callbacks.pictures import text_summary

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
            raise CallbackError(_no_such_scalar(name, self._history))
        step, value = self._history[name][-1]
        if at_step is not None and step != at_step:
            raise CallbackError(
                f"the newest {name!r} is of step {step}, not of step {at_step}; "
                "run what measures it at the same steps as what reads it"
            )
        return value

    def best(self) -> dict[str, tuple[int, float]]:
        """The step and the value of the best so far, by name: of the losses of held-out data, and of scalars that a
        saver or `EarlyStopping` watches. Only where the whole history is there."""
        watching = [one for one in map(innermost, self._trainer.callbacks) if isinstance(getattr(one, "best", 0), Best)]
        modes: dict[str, Mode] = {
            name: "min" for name in self._history if name.endswith("/loss") and not name.startswith("trn/")
        }
        modes |= {one.stat: one.best.mode for one in watching}  # type: ignore[attr-defined]
        found = {}
        for name, mode in modes.items():
            best = Best(mode)
            for step, value in self._history.get(name, ()):
                best.update(value, step)
            if best.step is not None and best.value is not None and len(self._history[name]) < HISTORY_LENGTH:
                found[name] = best.step, best.value
        return found

    def state_dict(self) -> dict[str, Any]:
        """The history, for a checkpoint."""
        return {name: [[step, as_json(value)] for step, value in pairs] for name, pairs in self._history.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the history of a checkpoint."""
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
    """Raise a CallbackError for a name that metrics.jsonl, or TensorBoard's directory for its prefix, cannot have."""
    if not isinstance(name, str):
        raise CallbackError(f"the name of a scalar must be a text, not {name!r}")
    if name in _RESERVED:
        raise CallbackError(f"a scalar cannot be called {name!r}; put a prefix before it, such as 'trn/{name}'")
    prefix = name.partition("/")[0] if "/" in name else ""
    if prefix == ".." or len(prefix.encode(errors="replace")) > 255 or "\0" in name or not _is_unicode(name):
        raise CallbackError(f"a scalar cannot be called {name[:80]!r}: its prefix is the name of a directory")


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= sign <= "\udfff" for sign in text)


def _no_such_scalar(name: str, known: Iterable[str]) -> str:
    there = sorted(known)
    stem = name.rpartition("/")[2]
    found = difflib.get_close_matches(name, [one.replace("/*", f"/{stem}") for one in there], n=1)
    meant = f"did you mean {found[0]!r}? " if found else ""
    return f"there is no scalar {name!r}; {meant}there are: {', '.join(there) or 'none yet'}"


def _recorded_twice(name: str, first: str, second: str, at: str = "") -> CallbackError:
    if at and first == second:
        return CallbackError(f"{first} records {name!r} twice{at}; give the second value another name")
    return CallbackError(
        f"{first} and {second} both record {name!r}{at}; give one of them another prefix=, or leave it out"
    )


def runs_code_of_user(callback: Callback) -> bool:
    """Whether a callback is the user's, or calls functions of the user."""
    inner = innermost(callback)
    thing = inner.wraps or inner
    return _is_of_user(thing) or type(thing).__name__ in _CALLS_FUNCTIONS


def _is_of_user(thing: object) -> bool:
    return not type(thing).__module__.startswith(("prototrain.", "keras."))


def as_number(name: str, value: Any) -> float:
    """Turn a scalar of any kind into a float.

    Raises:
        CallbackError: it is not a single number.
    """
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise CallbackError(f"scalar {name!r} must be a single number, got {value!r}") from error


def as_json(value: float) -> float | str:
    """A number as JSON can hold it: NaN and infinity, for which it has no word, as text, which `float` reads."""
    return value if math.isfinite(value) else repr(value)
