"""What the workers of a run tell each other between two calls, and when one of them ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import tensorflow as tf

from prototrain.cluster import Left, Link
from prototrain.cluster.call_watch import CallWatch
from prototrain.errors import ClusterError, ExperimentError, StopTraining
from prototrain.system.tracebacks import in_one_line

if TYPE_CHECKING:
    from prototrain.trainers.multi_worker import MultiWorkerTrainer


class Peers:
    """The other workers of a run, from the side of a trainer.

    Args:
        trainer: of this worker.
        link: the line to the others.
        watch: looks after the calls.
        say: prints a line on any worker.

    Attributes:
        has_begun: whether this worker trains.
        has_parted: whether the others know, or find out by themselves, that this worker makes no more steps.
        has_saved: the chief, since the others have heard of it.
        ended: the step behind which the last call met the end of the data.
    """

    def __init__(self, trainer: MultiWorkerTrainer, link: Link, watch: CallWatch, say: Callable[[str], object]) -> None:
        self._trainer = trainer
        self._link = link
        self._watch = watch
        self._say = say
        self.has_saved = False
        self.forget()

    def forget(self) -> None:
        """Nothing has been told yet of the run that is about to begin."""
        self.has_begun = self.has_parted = False
        self.ended: int | None = None

    def begin(self) -> None:
        """A run begins with its first call."""
        self.has_begun = True
        self._note_place(is_start=True)

    def agree(self, n: int) -> int:
        """Tell the others how many steps this worker can do, and whether it was asked to save, or that it has to stop.

        Returns:
            how many steps all workers can do.

        Raises:
            ExperimentError: the workers are not at the same step.
            ClusterError: a worker has failed, or does not come.
            StopTraining: another worker ends the run.
            KeyboardInterrupt, SystemExit: a worker was asked to stop, by the signal that it has got.
        """
        trainer, stop = self._trainer, self._trainer.stop
        mine = [n, trainer.global_step, trainer.data.total, stop.take_save(), self.has_saved]
        try:
            if stop.wanted is not None:
                self.has_parted = True
                self._link.leave(signum=stop.wanted)
                self._stop_now(stop.wanted)
            told = self._link.exchange(
                "a step", mine, ended=self.ended, grace=self._watch.grace, wanted=lambda: stop.wanted
            )
        except Left as left:
            self.has_parted = True
            self._take_leave(left)
        except ClusterError:
            self.has_parted = True
            self.stop_if_told()
            raise
        places = {tuple(place[1:3]) for place in told}
        if len(places) > 1:
            self.has_parted = True
            steps = ", ".join(f"worker {index}: step {place[1]}, batch {place[2]}" for index, place in enumerate(told))
            raise ExperimentError(
                f"the workers are at different places ({steps}): all of them must be able to read the chief's "
                "experiment directory, and must read the same data"
            )
        if told[0][4] or any(place[3] for place in told):
            self.has_saved = False
            self._note_place()
        if any(place[3] for place in told):
            trainer.run.save_as_asked()
        return int(min(place[0] for place in told))

    def part(self, planned: int, error: BaseException | None) -> None:
        """Tell the others, which wait for this worker's next step, that there is none; wait until all are here.

        Args:
            planned: the step at which the run was to end.
            error: what it ends with, if it fails or was stopped.
        """
        if self._link.broken is not None:
            return
        trainer = self._trainer
        why = None if error is None or isinstance(error, (KeyboardInterrupt, SystemExit)) else in_one_line(error)
        if why is None and trainer.run.state_is_sound and self.has_begun:
            self._note_place()
        if not self.has_parted and (trainer.global_step < planned or why is not None):
            self._link.leave(why=why, reason=trainer.run.stopped_by or "")
        try:
            # TensorFlow, on the others, may still be reading this process's part of the last step.
            self._link.exchange("the end of the training", None)
        except Left as left:
            if error is None and left.why is not None:
                self._take_leave(left)
        except ClusterError as broken:
            self._say(f"WARNING: {broken}, after the training had ended here")
        self._link.be("done")

    def stop_if_told(self) -> None:
        """End as after a signal, where a signal to another worker has broken the connection."""
        if self._link.broken is not None and self._link.broken["signum"] is not None:
            self._stop_now(int(self._link.broken["signum"]))

    def _take_leave(self, left: Left) -> NoReturn:
        """Another worker, or this one at a signal, ends the run where all are at the same step."""
        if left.signum is not None:
            self._stop_now(left.signum)
        name = self._link.names[left.who]
        if left.why is not None:
            raise ClusterError(f"{name} failed: {left.why}")
        raise StopTraining(f"{name} has ended the run" + (f": {left.reason}" if left.reason else ""))

    def _stop_now(self, signum: int) -> NoReturn:
        self._trainer.stop.agree(signum)
        self._trainer.stop.check()
        raise AssertionError("a stop was agreed on")

    def _note_place(self, *, is_start: bool = False) -> None:
        """Write down where this worker is in its own share of the data, beside what the chief saves."""
        data = self._trainer.data
        if data.own_places is None:
            return
        try:
            data.own_places.write(data, is_start=is_start)
        except (OSError, tf.errors.OpError) as error:
            index = self._trainer.worker.index
            self._say(f"WARNING: worker {index} cannot save its place in the data: {in_one_line(error)}")
