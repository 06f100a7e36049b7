"""Iterations done in compiled calls: what `TowerTrainer.run_steps` does unless a subclass has a `run_step`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf

from prototrain.checkpoint.looking import trackables
from prototrain.private_api.of_keras import KerasVariable
from prototrain.step.compiled_call import CompiledCall
from prototrain.step.eager_caveats import saved_handles
from prototrain.step.graph_caveats import graph_caveats, resource_caveats
from prototrain.step.result import StepFailure, StepResult
from prototrain.towers import components
from prototrain.trainers.python_steps import NOT_RECORDED

if TYPE_CHECKING:
    from prototrain.trainers.tower import TowerTrainer


class CompiledSteps:
    """Calls the compiled steps of a trainer, and takes note of what they have done.

    Args:
        trainer: makes the compiled call, see `TowerTrainer.make_call`.
        look: called once the step of a run is traced.

    Attributes:
        made: the compiled call of the present run, if it has been made.
    """

    def __init__(self, trainer: TowerTrainer, look: Callable[[], None]) -> None:
        self._trainer = trainer
        self._look = look
        self.forget()

    def forget(self) -> None:
        """Have the call made anew for the callbacks of the next run."""
        self.made: CompiledCall | None = None
        self._has_looked = False

    @property
    def call(self) -> CompiledCall:
        """The compiled call of the present run."""
        if self.made is None:
            self.made = self._trainer.make_call()
        return self.made

    def run(self, n: int) -> int:
        """Do up to `n` steps in one compiled call; 0 at the end of a pass over the data, or at a stop."""
        trainer, start = self._trainer, self._trainer.counter.step
        if not trainer.data.catch_up(trainer.leaves_off):
            return 0
        try:
            if trainer.is_compiled and trainer.callbacks.watching and self.call.may_be_watched:
                result = self.call.run(start, n - 1) if n > 1 else self.call.run_watched(start)
            else:
                result = self.call.run(start, n)
        except StepFailure as failure:
            trainer.data.count(0, reads_ahead=True)  # it has read at least one batch more
            self._take(failure.done, is_whole=failure.is_whole)
            raise failure.error from failure.error.__cause__
        # Within a `run_step` of the user's own there may be more to come of the step.
        self._take(result, is_whole=trainer.is_compiled)
        if not self._has_looked:
            self._has_looked = True
            if self.call.graph is not None:
                self._look_at_graph()
            self._look()
        if result.data_ended and not result.steps:
            trainer.data.start_next_pass()
        return result.steps

    def _take(self, result: StepResult, *, is_whole: bool) -> None:
        """Take note of what a call has done."""
        trainer = self._trainer
        trainer.data.count(result.steps)
        trainer.go_to(trainer.counter.step + result.steps, outputs=result.outputs or None, is_whole=is_whole)
        trainer.watched, trainer.summary_events = result.watched, result.summary_events
        trainer.times.add_call(tracing=result.tracing, waiting=result.waiting)

    def _look_at_graph(self) -> None:
        """Once the step is traced, say what of it a resumed run will not repeat, as far as that was not known."""
        trainer = self._trainer
        saved = trackables(trainer.state)
        variables = [one for one in saved if isinstance(one, tf.Variable | KerasVariable)]
        copies = [copy for variable in variables for copy in components(variable)]
        held = set(map(id, saved_handles(saved)))
        unsaved = [said for handle, said in resource_caveats(self.call.graph) if id(handle) not in held]
        trainer.session.weaken(graph_caveats(self.call.graph, copies) + unsaved)
        if self.call.leaves_summaries and not trainer.callbacks.has_watchers:
            trainer.session.say_once(NOT_RECORDED)
