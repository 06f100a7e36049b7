"""What callbacks do that a run in one go would not have had them do: it counts where it changes what is trained.

The end of a run counts as due, so a run that is made longer later has had a trigger more; and `before_train` runs once
more at each resume.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prototrain.callbacks.base import Callback
from prototrain.callbacks.proxies import innermost, periodic_trigger, user_object
from prototrain.callbacks.scheduling.callback_factory import CallbackFactory
from prototrain.callbacks.settings import is_followed, may_change_training
from prototrain.checkpoint.global_random import random_state
from prototrain.checkpoint.looking import looking
from prototrain.system.contents import is_own_code
from prototrain.system.wording import some_of

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer

_AHEAD = ("before_train", "on_train_begin", "begin")  # as callbacks, those of Keras and hooks of Estimators call it


class OffSchedule:
    """Looks at what callbacks change at such times, and says so.

    Args:
        trainer: of the run.
        labels: of its callbacks.
    """

    def __init__(self, trainer: Trainer, labels: Mapping[Callback, str]) -> None:
        self._trainer = trainer
        self._labels = labels

    @contextmanager
    def at_end(self, callback: Callback) -> Iterator[None]:
        """A callback runs because the run ends."""
        step, resume = self._trainer.global_step, self._trainer.session.resume
        with self._looking(callback) as changed:
            yield
        label = f"{self._labels[callback]} has"
        if names := changed():
            resume.weaken_others(f"{label} run at step {step}, the end of the run, and changed {names}")
        if innermost(callback).measures and is_followed(self._trainer, self._following(callback)):
            resume.weaken_others(f"{label} measured at step {step}, the end of the run, and others go by that")

    def _following(self, callback: Callback) -> list[Callback]:
        """Who may go by what a callback has measured at the end of a run, behind it."""
        trigger = periodic_trigger(callback)
        if trigger is not None and not trigger.is_on_schedule(self._trainer.steps_per_epoch):
            return list(self._labels)
        # Those of Keras see what was measured last in an epoch, which is measured anew at its end.
        return [one for one in self._labels if innermost(one).wraps is None]

    @contextmanager
    def once_more(self, callback: Callback) -> Iterator[None]:
        """The `before_train` of a callback runs, in a resumed run perhaps."""
        session = self._trainer.session
        thing = user_object(callback)
        hooks = [getattr(thing, name, None) for name in _AHEAD]
        hooks += [thing.function_of("before_train")] if isinstance(thing, CallbackFactory) else []
        # Those of the library put in place what belongs to the present step.
        if session.resume.checkpoint is None or not any(is_own_code(getattr(one, "__func__", one)) for one in hooks):
            yield
            return
        with self._looking(callback) as changed:
            yield
        if names := changed():
            session.weaken(
                [f"before_train of {self._labels[callback]} has run once more and changed {names}"], lasts=False
            )

    @contextmanager
    def _looking(self, callback: Callback) -> Iterator[Callable[[], str]]:
        """Yields a function that says what the callback has changed since, or nothing."""
        if not may_change_training(callback):
            yield str
            return
        changes, generators = looking(self._trainer.state), random_state()

        def changed() -> str:
            found = changes() + ["the global random generators"] * (random_state() != generators)
            return some_of(found)

        yield changed
