"""Who runs when, in which order, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from prototrain.callbacks.base import Callback, Priority, ProxyCallback
from prototrain.callbacks.monitor import Monitor
from prototrain.callbacks.trigger import PeriodicTrigger
from prototrain.system.tables import Table


def describe(callbacks: Sequence[Callback]) -> str:
    """Describe callbacks, given in the order in which they run, as text; see `callback_table`."""
    return str(callback_table(callbacks))


def callback_table(callbacks: Sequence[Callback]) -> Table:
    """Priority, callback, when `trigger` runs, what is traced into the steps, whether there is state."""
    rows = [
        (_stage(cb), cb.name, _when(cb), _traced(cb), "yes" if cb.overrides("state_dict") else "") for cb in callbacks
    ]
    return Table(rows, ["stage", "callback", "runs", "in each step", "state"])


def _stage(callback: Callback) -> str:
    try:
        return Priority(callback.priority).name.lower()
    except ValueError:
        return str(callback.priority)


def _when(callback: Callback) -> str:
    if isinstance(callback, PeriodicTrigger):
        return _interval(callback)
    words = []
    if isinstance(callback, ProxyCallback):
        inside = _when(callback.callback)
        return f"{inside} ({type(callback).__name__})"
    if callback.overrides("trigger_step") or callback.overrides("next_step"):
        words.append("after each step" if not callback.overrides("next_step") else "after steps it chooses")
    if callback.overrides("trigger") or callback.overrides("trigger_epoch"):
        words.append("after each epoch")
    if isinstance(callback, Monitor):
        words.append("at each scalar")
    around = [
        hook for hook in ("before_train", "after_train", "before_epoch", "after_epoch") if callback.overrides(hook)
    ]
    return ", ".join(words or [hook.replace("_", " ") for hook in around] or ["at setup"])


def _interval(trigger: PeriodicTrigger) -> str:
    units = {"steps": trigger.every_k_steps, "epochs": trigger.every_k_epochs, "seconds": trigger.every_n_seconds}
    words = [
        f"every {count} {unit}" if count != 1 else f"after each {unit[:-1]}" for unit, count in units.items() if count
    ]
    words += ["before training"] * ("before_train" in trigger.schedule)
    return " and ".join(words + ["at the end"] * trigger.at_end)


def _traced(callback: Callback) -> str:
    return ", ".join(hook for hook in ("before_run", "after_run") if callback.overrides(hook))
