"""Which callbacks of a run have still to run for the present step, also across a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prototrain.callbacks.base import Callback
from prototrain.callbacks.proxies import periodic_trigger, runs_each_step
from prototrain.callbacks.trigger import PeriodicTrigger
from prototrain.errors import CallbackError

if TYPE_CHECKING:
    from prototrain.trainers.base import Trainer


HOOKS = {
    "before_epoch": "before_epoch",
    "step": "trigger_step",
    "after_epoch": "after_epoch",
    "epoch": "trigger_epoch",
}
"""The phases of an epoch, and what is called in them."""


class Agenda:
    """What the callbacks of one run have asked for, and what of it is still to be done.

    An epoch begins with the phase "before_epoch". A step has one, "step", of those callbacks that had asked for it; if
    it ends an epoch, "after_epoch" and "epoch" follow, the latter with those that are triggered after one. A checkpoint
    can be taken, and a run can end, between any two callbacks: what is left then is `pending`, is saved, and is done
    first when the run goes on. So each of them runs once for an epoch, however often that is stopped.

    Args:
        trainer: says at which step the run is.
        labels: the run's callbacks, in the order in which they run, and what each is called in a checkpoint.

    Attributes:
        is_running: whether `current` is under way: a checkpoint that it takes counts it as done, one taken after its
            failure does not.
        epoch: how far the present one is: "ahead", "begun", or "cut" short by an end of the run.
        to_prepare: whose `before_epoch` has to be called once more, since they keep nothing of it in a checkpoint.
    """

    def __init__(self, trainer: Trainer, labels: Mapping[Callback, str]) -> None:
        self._trainer = trainer
        self._labels = labels
        self._scheduled = [cb for cb in labels if cb.overrides("trigger_step") or cb.overrides("next_step")]
        self._around_epoch = {
            hook: [callback for callback in labels if callback.overrides(hook)]
            for hook in ("before_epoch", "after_epoch")
        }
        self._by_epoch = [cb for cb in labels if cb.overrides("trigger_epoch") or cb.overrides("trigger")]
        self._asked: list[tuple[Callback, int]] = []
        self._pending: list[Callback] = []
        self._phase: str | None = None  # while callbacks of it have still to run
        self.epoch = "ahead"
        self._begun_at = 0  # the step that the epoch has begun at
        self.to_prepare: Sequence[Callback] = ()
        self.is_running = False

    # -- what comes next ----------------------------------------------------------------------------------------------

    @property
    def each_step(self) -> bool:
        """Whether some callback runs after every single step."""
        return any(map(runs_each_step, self._scheduled))

    def ask(self) -> tuple[int, Sequence[Callback]]:
        """Ask every callback for its next step.

        Returns:
            the nearest one, at most the end of the epoch or of the run, and the callbacks that are due then.

        Raises:
            CallbackError: a callback named a step that is over.
        """
        trainer = self._trainer
        step = trainer.counter.step
        self._asked = []
        end = nearest = min(trainer.end_of_epoch, trainer.total_steps)
        for callback in self._scheduled:
            due = callback.next_step(step)
            if due is None:
                continue
            if due <= step:
                raise CallbackError(
                    f"{callback.name}.next_step({step}) returned {due!r}, which is not after step {step}"
                )
            self._asked.append((callback, due))
            nearest = min(nearest, due)
        due_then = [callback for callback, due in self._asked if due == nearest]
        if nearest == end:  # periodic ones have said what they want of the end of an epoch
            due_then += [callback for callback in self._by_epoch if not isinstance(callback, PeriodicTrigger)]
        return nearest, due_then

    # -- the phases of a step -----------------------------------------------------------------------------------------

    @property
    def phase(self) -> str | None:
        """What callbacks have still to run of, a key of `HOOKS`; None if all is done."""
        return self._phase

    @property
    def current(self) -> Callback | None:
        """The callback whose turn it is, or None if the phase has none left."""
        return self._pending[0] if self._pending else None

    @property
    def left(self) -> Sequence[Callback]:
        """Who has still to run in the phase, without one that is under way: if that saves, it is done with its step."""
        return self._pending[1:] if self.is_running else self._pending

    @property
    def epoch_is_over(self) -> bool:
        """Whether the present step ends its epoch; the last one of a run may be cut short."""
        trainer = self._trainer
        return trainer.counter.step >= min(trainer.end_of_epoch, trainer.total_steps)

    def open_epoch(self) -> None:
        """Begin the phase of those that run ahead of an epoch's steps, unless that has been or a step is unfinished.

        Where the end of a run has cut the epoch short, it begins again for those that its end was an end for.
        """
        if self._phase is None and not (self.epoch == "begun" and self._begun_at >= self._first_step):
            self._begun_at = self._trainer.global_step
            mine = self._around_epoch["before_epoch"]
            self._begin("before_epoch", [one for one in mine if one.at_end] if self.epoch == "cut" else mine)

    def close_epoch(self) -> None:
        """Begin the phase of those that run right behind an epoch's steps, if it has not begun by itself."""
        if self._phase is None and self.epoch == "begun":
            mine = self._around_epoch["after_epoch"]
            self._begin("after_epoch", [one for one in mine if one.at_end] if self._is_cut else mine)

    @property
    def _first_step(self) -> int:
        """The completed steps ahead of the present epoch; a resume may have given epochs another length."""
        return self._trainer.global_step - self._trainer.local_step

    @property
    def _is_cut(self) -> bool:
        return self._trainer.local_step != self._trainer.steps_per_epoch

    def begin_step(self) -> None:
        """Begin the phase of those that asked for this step."""
        step = self._trainer.counter.step
        self._begin("step", [callback for callback, due in self._asked if due == step])

    def begin_triggers(self) -> None:
        """Begin the phase of those that are triggered after an epoch; if that is cut short, of those that say so."""
        due = self._by_epoch
        if self._is_cut:
            due = [callback for callback in due if callback.at_end or periodic_trigger(callback) is not None]
        self._begin("epoch", due)

    def begin_end(self) -> None:
        """Begin the phase of those that only the end of the run makes due, behind an epoch whose own have run."""
        self._begin("epoch", [callback for callback in self._by_epoch if periodic_trigger(callback) is not None])

    def done(self) -> None:
        """Cross out `current`."""
        self._pending.pop(0)

    def end_phase(self) -> None:
        """Go on to the next phase, if one follows by itself."""
        ended, self._phase = self._phase, None
        if ended == "before_epoch":
            self.epoch = "begun"
        elif ended == "step" and self.epoch_is_over:
            self.close_epoch()
        elif ended == "after_epoch":
            self.epoch = "cut" if self._is_cut else "ahead"
            self.begin_triggers() if self._trainer.local_step else self.begin_end()

    def _begin(self, phase: str, callbacks: Sequence[Callback]) -> None:
        self._phase = phase
        self._pending = list(callbacks)

    # -- what a checkpoint holds --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The phase, who has still to run in it, and whose periodic trigger has fired at this step, by their labels;
        and how far the epoch is.

        A callback that saves is done with its step; one that failed is not, and runs again after a resume.
        """
        triggers = [(callback, periodic_trigger(callback)) for callback in self._labels if callback not in self.left]
        step = self._trainer.global_step
        return {
            "phase": self._phase,
            "epoch": self.epoch,
            "begun_at": self._begun_at,
            "pending": [self._labels[callback] for callback in self.left],
            "fired": [self._labels[callback] for callback, trigger in triggers if trigger and trigger.fired_at(step)],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned when the checkpoint was written; labels of no callback are left out."""
        by_label = {label: callback for callback, label in self._labels.items()}
        if state["phase"] not in (None, *HOOKS):
            raise ValueError(f"there is no phase {state['phase']!r}")
        self._phase = state["phase"]
        begun = self._phase == "step" or (self._phase is None and self._trainer.local_step > 0)
        # Earlier versions did not save the next two.
        self.epoch = str(state.get("epoch", "begun" if begun else "ahead"))
        self._begun_at = int(state.get("begun_at", self._first_step))
        self._pending = [by_label[label] for label in state["pending"] if label in by_label]
        for label in state["fired"]:
            trigger = periodic_trigger(by_label[label]) if label in by_label else None
            if trigger is not None:
                trigger.mark_fired()
        if self._phase is not None or self.epoch != "ahead":
            ahead = self._pending if self._phase == "before_epoch" else []
            if self._phase is None and self.epoch == "cut":  # for the others the epoch begins again
                ahead = [callback for callback in self._labels if callback.at_end]
            mine = [callback for callback in self._around_epoch["before_epoch"] if callback not in ahead]
            self.to_prepare = [callback for callback in mine if not callback.overrides("state_dict")]
