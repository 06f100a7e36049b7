"""What callbacks were made with, as far as training depends on it, so that a change of it can be named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import keras

from prototrain.callbacks.base import Callback, ProxyCallback
from prototrain.callbacks.hyperparameters.hyper_param import HyperParam
from prototrain.callbacks.proxies import innermost, user_object
from prototrain.callbacks.trigger import PeriodicTrigger
from prototrain.experiment.provenance import CODE, STATE, STEPS_PER_EPOCH
from prototrain.private_api.of_keras import CALLBACK_SCRATCH
from prototrain.system.contents import is_own_code
from prototrain.system.objects import attributes_of, is_own
from prototrain.system.own_code import attributes, code_of, digest_of, names_in, noted, reached

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

_OF_RUN = {"_due", "_enabled", "_verbose", "state_key", "trainer", "verbose"}
_OF_ENGINE = {"at_end", "callback", "chief_only", "priority"}  # attributes of callbacks that are not the user's
_OF_EPOCH = {"end_of_epoch", "epoch_num", "local_step", "steps_per_epoch"}  # attributes of a trainer
_BY_EPOCH = ("on_epoch_begin", "on_epoch_end")  # what Keras calls
# Keras's own that change what is trained.
SETTERS = (
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.SwapEMAWeights,
)
_MEASURED = {"history", "latest"}  # how code of the user's own asks monitors for it


def callback_settings(
    trainer: Trainer, labels: Mapping[Callback, str], state_keys: Mapping[str, Callback]
) -> dict[str, Any]:
    """What counts of the callbacks of a run, as JSON can hold it, by label: of those that may change what is trained
    the attributes and the interval, and of the user's own, of which nobody knows, the code and what it names as well.

    Asked before they are set up, when they are as they were made.

    Args:
        trainer: of the run.
        labels: of the callbacks.
        state_keys: those that have a state, by its name in a checkpoint.
    """
    keys = {callback: key for key, callback in state_keys.items()}
    found = {}
    followed = is_followed(trainer, labels)
    for callback, label in labels.items():
        settings = _settings(trainer, callback, counts=followed and innermost(callback).measures)
        if settings:
            found[label] = settings | ({STATE: keys[callback]} if callback in keys else {})
    return found


def lengths_named(trainer: Trainer, *things: Any) -> dict[str, Any]:
    """The lengths of a run that code of the user's own names, since they are no reason by themselves.

    Args:
        trainer: of the run.
        things: classes, functions, and what holds such; what they call `not_compared` does not count.
    """
    names = set().union(*map(names_in, things)).difference(*(getattr(thing, "not_compared", ()) for thing in things))
    found: dict[str, Any] = {"total_steps": trainer.total_steps} if "total_steps" in names else {}
    return found | (_epoch(trainer) if names & _OF_EPOCH else {})


def _epoch(trainer: Trainer) -> dict[str, Any]:
    return {STEPS_PER_EPOCH: trainer.steps_per_epoch}


def is_of_user(callback: Callback) -> bool:
    """Whether a callback runs code of the user's own."""
    thing = user_object(callback)
    return is_own(type(thing)) or any(map(is_own_code, attributes_of(thing, _not_given(thing)).values()))


def is_followed(trainer: Trainer, callbacks: Iterable[Callback]) -> bool:
    """Whether what is measured may change what is trained."""
    return any(map(_follows, callbacks)) or bool(_MEASURED & names_in(type(trainer)))


def may_change_training(callback: Callback) -> bool:
    """Whether a callback may change what is trained: it says so; or nobody knows, since it runs code of the user's own
    or evaluates the model, whose layers may draw random numbers or keep a state for it."""
    changes = getattr(user_object(callback), "changes_training", None)
    if changes is None:
        return is_of_user(callback) or innermost(callback).measures
    return bool(changes)


def _not_given(thing: Any) -> set[str]:
    """The attributes of a callback that say nothing of what it was made with."""
    found = _OF_RUN | (CALLBACK_SCRATCH if isinstance(thing, keras.callbacks.Callback) else set())
    return found if is_own(type(thing)) else found | _OF_ENGINE


def _follows(callback: Callback) -> bool:
    """Whether a callback may change what is trained by what others have measured."""
    thing = user_object(callback)
    if isinstance(thing, keras.callbacks.ReduceLROnPlateau) or innermost(callback).goes_by_measurements:
        return True
    if getattr(thing, "changes_training", None) is False or not is_of_user(callback):
        return False
    if isinstance(thing, keras.callbacks.Callback):  # which is given it
        return True
    return bool(_MEASURED & names_in([type(thing), *attributes_of(thing, _not_given(thing)).values()]))


def _settings(trainer: Trainer, callback: Callback, *, counts: bool) -> dict[str, Any]:
    inner, thing = innermost(callback), user_object(callback)
    changes = getattr(thing, "changes_training", None)
    if changes is None and (counts or isinstance(thing, SETTERS)):
        changes = True
    found: dict[str, Any] = noted(thing, lambda: _made_with(trainer, thing, changes))
    around = _around(callback)
    if found:
        found = {**found, **(_epoch(trainer) if _runs_by_epoch(inner, around) else {})}
        found |= lengths_named(trainer, type(thing), list(attributes_of(thing, _not_given(thing)).values()))
    if around and (found or any(map(_counts, around))):
        found = {**found, "its interval": _interval(around)}
    return found


def _runs_by_epoch(callback: Callback, around: list[Callback]) -> bool:
    """Whether it depends on the length of an epoch when a callback is called."""
    if callback.wraps is not None:
        none = keras.callbacks.Callback
        return any(getattr(type(callback.wraps), hook, None) not in (None, getattr(none, hook)) for hook in _BY_EPOCH)
    triggers = [one for one in around if isinstance(one, PeriodicTrigger)]
    if triggers and triggers[-1].every_k_epochs is not None:
        return True
    hooks = ("before_epoch", "after_epoch") if triggers else ("before_epoch", "after_epoch", "trigger_epoch", "trigger")
    return any(map(callback.overrides, hooks))


def _made_with(trainer: Trainer, thing: Any, changes_training: bool | None) -> dict[str, Any]:
    if changes_training is False:
        return {}
    kind, besides = type(thing), _not_given(thing)
    of_class = {"class": kind.__name__}  # also where there is nothing else to be said of it
    for name, value in attributes_of(thing, besides).items():
        if isinstance(value, HyperParam):
            of_class[f"target of {name}"] = value.name_in(trainer.state)
    if is_own(kind):
        return {**of_class, **attributes(thing, besides=besides), **reached(kind), CODE: code_of(kind)}
    if changes_training:
        return {**of_class, **attributes(thing, besides=besides)}
    given = {name: value for name, value in attributes_of(thing, besides).items() if is_own_code(value)}
    return {name.lstrip("_"): digest_of(value) for name, value in given.items()}


def _around(callback: Callback) -> list[Callback]:
    """The proxies around a callback, the outermost first."""
    found: list[Callback] = []
    while isinstance(callback, ProxyCallback):
        found.append(callback)
        callback = callback.callback
    return found


def _counts(proxy: Callback) -> bool:
    """Whether a proxy is the user's own and does not say that it changes nothing."""
    return is_own(type(proxy)) and proxy.changes_training is not False


def _interval(around: list[Callback]) -> Any:
    """When a callback runs, by the proxies around it."""
    found: list[Any] = []
    for proxy in around:
        if isinstance(proxy, PeriodicTrigger):
            found.append(proxy.schedule)
        else:
            code = {CODE: code_of(type(proxy)), **reached(type(proxy))} if _counts(proxy) else {}
            found.append(attributes(proxy, besides=_OF_RUN | _OF_ENGINE) | code)
    return found[0] if len(found) == 1 else found
