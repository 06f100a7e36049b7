"""Several processes, on one machine or many, that train one model together."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import tensorflow as tf

from prototrain.cluster import COLLECTIVES, Left, connect, find_cluster, own_link
from prototrain.cluster.agreement import WORD_SECONDS, Agreement, LeavingTogether
from prototrain.cluster.call_watch import CallWatch
from prototrain.cluster.shared_directory import require_shared
from prototrain.cluster.supervision import own_supervision
from prototrain.data.shares import OwnPlaces, Share, shared_out
from prototrain.errors import ClusterError, ConfigError, ExperimentError, NonFiniteError, StepError, StopTraining
from prototrain.experiment import Experiment
from prototrain.private_api.of_keras import KerasVariable
from prototrain.step.compiled_call import CompiledCall
from prototrain.step.scratch import scratch_variable
from prototrain.system.signals import StopRequest
from prototrain.system.tracebacks import in_one_line
from prototrain.towers import choose_devices, components, in_words
from prototrain.trainers.placement import Placement
from prototrain.trainers.replicated import BatchMeaning, SyncTrainer
from prototrain.trainers.step_plan import step_plan

if TYPE_CHECKING:
    from prototrain.callbacks.base import Callback
    from prototrain.model import ModelProtocol
    from prototrain.model.built import BuiltModel

BACKUP_SECONDS = 5.0


class AgreedStop(StopRequest):
    """Takes requests to stop, but shows them only once all workers have heard of them."""

    wanted: int | None = None

    def __enter__(self) -> AgreedStop:
        self.wanted = None
        super().__enter__()
        return self

    def request(self, signum: int) -> None:
        if self.wanted is None:
            self.wanted = signum

    def _pause(self) -> None:
        pass  # no worker may leave a call by itself; calls are short

    def agree(self, signum: int) -> None:
        """All workers know now: let this one stop."""
        super().request(signum if self.wanted is None else self.wanted)


class Backup:
    """A copy of the state from some seconds ago: a step that fails because a peer is gone may be half-done.

    Args:
        trainer: whose state is copied.
        clock: returns the time in seconds.
    """

    def __init__(self, trainer: MultiWorkerTrainer, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._trainer = trainer
        self._clock = clock
        self._taken = -BACKUP_SECONDS
        self._step = 0
        self._copies: list[tuple[tf.Variable, tf.Tensor]] = []

    def take(self) -> None:
        """Copy the state, unless the last copy is young."""
        if self._clock() - self._taken < BACKUP_SECONDS:
            return
        entries = self._trainer.model_state()
        self._copies = [(copy, tf.identity(copy)) for entry in entries for copy in components(entry)]
        self._step, self._taken = self._trainer.global_step, self._clock()

    def expire(self) -> None:
        """Have the state copied anew before the next step, so that nobody goes back to before a checkpoint."""
        self._taken = -BACKUP_SECONDS

    def put_back(self) -> int:
        """Give the state its copied values.

        Returns:
            the number of completed steps that they belong to.
        """
        for variable, value in self._copies:
            variable.assign(value)
        return self._step


class MultiWorkerTrainer(SyncTrainer):
    """Trains with several processes at once, each with its own GPUs (or CPU): averaged gradients, the same weights.

    ``prototrain run --workers N`` and `prototrain.cluster.run` start the processes. Or start one per worker with the
    same command, where ``TF_CONFIG`` or Slurm's variables say who is who. All workers read the same data and each takes
    its part of every batch, unless ``model.data_sharding`` gives each a share of its own. Only the chief, which is the
    first worker, writes the experiment; its directory must be one that all workers see, which is tried before the first
    step.

    Args:
        model: an object with `config`, `datasets()` and `build(inputs, train_phase)`.
        batch: whether ``model.batch_size`` is that of a step ("global") or that of a tower ("per_tower").
        reduction: how gradients are combined: "nccl" between GPUs, "ring" over the network, or TensorFlow's choice.
        experiment: the directory of the run, if it is to leave anything behind.

    Raises:
        ConfigError: there is no description of the cluster, TensorFlow has started before this, the batch does not
            divide by the number of towers, or the workers were started with different configs, code or data.
        ClusterError: a worker has not come in time, or has failed.
    """

    measures_xla = False  # each worker would measure something else
    stop: AgreedStop
    _ended: int | None  # the step behind which the last call met the end of the data

    def __init__(
        self,
        model: ModelProtocol,
        *,
        batch: BatchMeaning = "global",
        reduction: Literal["auto", "nccl", "ring"] = "auto",
        experiment: Experiment | str | Path | None = None,
    ) -> None:
        if reduction not in COLLECTIVES:
            raise ConfigError(f"reduction must be {', '.join(COLLECTIVES)}, not {reduction!r}")
        timeout = model.config["trainer.cluster_timeout"]
        strategy, self.worker = connect(reduction, timeout=timeout)
        self._link, self._supervision = own_link(), own_supervision()
        self._link.limits.silence, self._link.limits.stall = timeout, model.config["trainer.stall_timeout"]
        self._parted, self._ended = False, None
        self._has_told = False  # those who have started this worker that it trains
        self._has_saved = False  # the chief, since the others have heard of it
        self._caveat: str | None = None  # of this worker's data, which the others have not heard of
        towers = strategy.num_replicas_in_sync // self.worker.count
        self._share_out(model, towers, batch)
        self.share = Share(self.worker.index, self.worker.count, model.config["model.data_sharding"])
        placement = Placement(
            strategy, first_tower=towers * self.worker.index, own_towers=towers if self.share.is_own else None
        )
        self._agreement = Agreement(self._link)
        with LeavingTogether(self._link), self._agreement.failing_together():
            self._agreement.require_same_settings(model, self)
            self._link.be("making its datasets")
            super().__init__(model, experiment=experiment, placement=placement, batch=batch)
            self._agreement.require_same("the model", {"variables": list(self.variables)})
            self._link.be("getting ready")
        self.is_chief, self.workers = self.worker.is_chief, self.worker.count
        if self.share.is_own and not self.is_chief and self.experiment is not None:
            self.data.own_places = OwnPlaces(self.experiment.places(self.worker.index), self.experiment.checkpoints)
        self.stop = AgreedStop(self._say)
        self._backup = Backup(self)
        with tf.device("CPU:0"):  # where it can be read whatever the other devices wait for
            self._begun = scratch_variable(0, dtype=tf.int64, name="begun")
        self._link.announce = self._say
        self._watch = CallWatch(self._link, lambda: int(self._begun), lambda: self.stop.wanted, self._say)

    @classmethod
    def prepare(cls, timeout: float | None = None) -> None:
        connect(timeout=timeout)

    @classmethod
    def give_up(cls, error: BaseException) -> None:
        own_link().fail(in_one_line(error))

    @classmethod
    def leads(cls) -> bool:
        return find_cluster()[1].is_chief

    def train(
        self, callbacks: Iterable[Callback] = (), *, resume: bool = True, fresh: bool = False, **more: Any
    ) -> None:
        # What was begun afresh by a group of workers is gone on with by the next one.
        goes_on = self._supervision is not None and self._supervision.group.goes_on
        super().train(callbacks, resume=resume or goes_on, fresh=fresh and not goes_on, **more)

    @contextmanager
    def _around_run(self) -> Iterator[None]:
        self._parted, self._ended, planned = False, None, self.total_steps
        self._has_told = False
        with LeavingTogether(self._link), self._agreement.failing_together():
            # Nobody looks for a checkpoint before the chief has cleared the directory.
            require_shared(self._link, self.experiment, is_chief=self.is_chief)
        error: BaseException | None = None
        try:
            with super()._around_run():
                yield
        except BaseException as caught:
            error = caught
            raise
        finally:
            self._part(planned, error)

    def run_steps(self, n: int) -> int:
        if not self._has_told:
            self._tell_of_start()
        agreed = self._agree(min(n, self.call.longest))
        self._backup.take()
        self._begun.assign(self.global_step)
        try:
            with self._watch.under_way(self.global_step):
                steps = self._run_call(agreed)
        except NonFiniteError:
            self._parted = True  # averaged gradients are the same everywhere: all workers end here
            raise
        except StepError as error:
            self._parted = True
            raise self._after_break(error) from error
        except StopTraining:  # the data has ended, which it should have everywhere
            self._ended = self.global_step
            self._agree(0)
            self._parted = True
            raise
        except Exception as error:  # the others are in the step already
            self._parted = True
            self._link.fail(in_one_line(error))
            raise
        self._ended = self.global_step if steps < agreed else None
        if self._supervision is not None and self._supervision.group.stall_timeout is not None:
            self._link.limits.stall = self._supervision.group.stall_timeout  # now that the step is traced
        return steps

    def go_to(
        self,
        step: int,
        *,
        epoch_num: int | None = None,
        outputs: Mapping[str, Any] | None = None,
        is_whole: bool = True,
    ) -> None:
        super().go_to(step, epoch_num=epoch_num, outputs=outputs, is_whole=is_whole)
        if self._supervision is not None and self._has_told:
            self._supervision.step = step

    def make_call(self) -> CompiledCall:
        # Several workers have no step that is seen alone: its graph would be another one on each of them.
        plan = step_plan(self, may_be_watched=False)

        def before_run(step: tf.Tensor) -> None:
            self._begun.assign(step + 1)
            plan.before_run(step)

        return CompiledCall(dataclasses.replace(plan, before_run=before_run), self._stop_variable)

    def make_datasets(self) -> dict[str, tf.data.Dataset]:
        return shared_out(super().make_datasets(), self.share, self.global_batch // self.worker.count)

    def start_save(self) -> Callable[[], Path]:
        self._backup.expire()
        self._has_saved = True
        return super().start_save()

    def model_state(self) -> list[Any]:
        """The variables in `state`."""
        return [entry for entry in self.state.values() if isinstance(entry, (tf.Variable, KerasVariable))]

    def log(self, text: str) -> None:
        if self.worker.is_chief or text.startswith("WARNING"):
            super().log(text)

    def describe(self) -> dict[str, Any]:
        devices = f"{in_words(choose_devices(None))} of each worker"
        rows = {**super().describe(), "devices": devices, "workers": self.worker.count, "data": self.share.division}
        if self._supervision is None:
            return rows
        group = self._supervision.group
        if group.workers < group.wanted:
            rows["workers"] = f"{group.workers} of {group.wanted}, with the same global batch"
        if group.cause is None:
            return rows
        again = {"started again": f"restart {group.restarts}: {group.cause}"}
        return {"workers": rows["workers"], "start": rows["start"], **again}  # the rest has been said

    def describe_more(self) -> list[str]:
        is_again = self._supervision is not None and self._supervision.group.cause is not None
        return [] if is_again else super().describe_more()

    def attempt_facts(self) -> dict[str, Any]:
        facts = {**super().attempt_facts(), "workers": self.worker.count}
        if self._supervision is not None:
            facts |= {"restarts": self._supervision.group.restarts, "cause": self._supervision.group.cause}
        return facts

    def provenance(self) -> dict[str, Any]:
        return {**super().provenance(), "workers": self.worker.count}

    def _save_if_asked(self) -> None:
        pass  # which only the chief can do, whoever was asked: see `_agree`

    # -- whoever has started this worker ------------------------------------------------------------------------------

    def _share_out(self, model: ModelProtocol, towers: int, batch: BatchMeaning) -> None:
        """Say with how many workers a step can be done."""
        if self._supervision is None:
            return
        parts = model.config["model.batch_size"] // (towers * model.config["model.accumulate_steps"])
        self._supervision.shares = parts if batch == "global" else self._supervision.group.wanted

    def _note_place(self, *, is_start: bool = False) -> None:
        """Write down where this worker is in its own share of the data, beside what the chief saves."""
        if self.data.own_places is None:
            return
        try:
            self.data.own_places.write(self.data, is_start=is_start)
        except (OSError, tf.errors.OpError) as error:
            self._say(f"WARNING: worker {self.worker.index} cannot save its place in the data: {in_one_line(error)}")

    def _say_caveats(self, caveats: list[str | None]) -> None:
        """Say why other workers' shares of the data do not go on exactly, which nobody but they can know."""
        if self.is_chief and self.share.is_own:
            known = self.data.caveat
            found = [f"worker {index}: {why}" for index, why in enumerate(caveats) if why not in (None, known)]
            if found:
                self.session.weaken(found)

    def _tell_of_start(self) -> None:
        self._has_told = True
        self._note_place(is_start=True)
        self._caveat = self.data.caveat
        if self._supervision is None:
            return
        self._supervision.step = self.global_step
        if self.is_chief:
            self.monitors.put_scalar("cluster/restarts", self._supervision.group.restarts)
            self.monitors.put_scalar("cluster/workers", self.worker.count)

    # -- agreeing -----------------------------------------------------------------------------------------------------

    def _agree(self, n: int) -> int:
        """Tell the others how many steps this worker can do, and whether it was asked to save, or that it has to stop.

        Returns:
            how many steps all workers can do.

        Raises:
            ExperimentError: the workers are not at the same step.
            ClusterError: a worker has failed, or does not come.
            StopTraining: another worker ends the run.
            KeyboardInterrupt, SystemExit: a worker was asked to stop, by the signal that it has got.
        """
        caveat, self._caveat = self._caveat, None
        mine = [n, self.global_step, self.data.total, self.stop.take_save(), self._has_saved, caveat]
        try:
            if self.stop.wanted is not None:
                self._parted = True
                self._link.leave(signum=self.stop.wanted)
                self._stop_now(self.stop.wanted)
            told = self._link.exchange(
                "a step", mine, ended=self._ended, grace=self._watch.grace, wanted=lambda: self.stop.wanted
            )
        except Left as left:
            self._parted = True
            self._take_leave(left)
        except ClusterError:
            self._parted = True
            self._stop_if_told()
            raise
        places = {tuple(place[1:3]) for place in told}
        if len(places) > 1:
            self._parted = True
            steps = ", ".join(f"worker {index}: step {place[1]}, batch {place[2]}" for index, place in enumerate(told))
            raise ExperimentError(
                f"the workers are at different places ({steps}): all of them must be able to read the chief's "
                "experiment directory, and must read the same data"
            )
        if told[0][4] or any(place[3] for place in told):
            self._has_saved = False
            self._note_place()
        self._say_caveats([place[5] for place in told])
        if any(place[3] for place in told):
            self.session.saving.save_as_asked()
        return int(min(place[0] for place in told))

    def _take_leave(self, left: Left) -> NoReturn:
        """Another worker, or this one at a signal, ends the run where all are at the same step."""
        if left.signum is not None:
            self._stop_now(left.signum)
        name = self._link.names[left.who]
        if left.why is not None:
            raise ClusterError(f"{name} failed: {left.why}")
        raise StopTraining(f"{name} has ended the run" + (f": {left.reason}" if left.reason else ""))

    def _stop_now(self, signum: int) -> NoReturn:
        self.stop.agree(signum)
        self.stop.check()
        raise AssertionError("a stop was agreed on")

    def _stop_if_told(self) -> None:
        """End as after a signal, where a signal to another worker has broken the connection."""
        if self._link.broken is not None and self._link.broken["signum"] is not None:
            self._stop_now(int(self._link.broken["signum"]))

    def _part(self, planned: int, error: BaseException | None) -> None:
        """Tell the others, which wait for this worker's next step, that there is none; wait until all are here."""
        if self._link.broken is not None:
            return
        why = None if error is None or isinstance(error, (KeyboardInterrupt, SystemExit)) else in_one_line(error)
        if why is None and self.state_is_sound and self._has_told:
            self._note_place()
        if not self._parted and (self.global_step < planned or why is not None):
            self._link.leave(why=why, reason=self.session.stopped_by or "")
        try:
            # TensorFlow, on the others, may still be reading this process's part of the last step.
            self._link.exchange("the end of the training", None)
        except Left as left:
            if error is None and left.why is not None:
                self._take_leave(left)
        except ClusterError as broken:
            self._say(f"WARNING: {broken}, after the training had ended here")
        self._link.be("done")

    def _after_break(self, error: StepError) -> BaseException:
        """What to raise when a call has failed: this worker's own error, or what has become of another one."""
        is_collective = "ollective" in str(error.__cause__)
        if is_collective:
            self._link.hear(WORD_SECONDS)
        broken = self._link.broken
        if not is_collective and (broken is None or broken["signum"] is None):
            self._link.fail(in_one_line(error))
            return error
        back = self._put_back()
        if broken is None:
            self._link.fail(in_one_line(error))
            return StepError(f"the connection between the workers broke{back}: {error}")
        found = self._link.error()
        try:
            self._stop_if_told()
        except (KeyboardInterrupt, SystemExit) as stopped:
            return stopped
        return ClusterError(f"{found}{back}")

    def _put_back(self) -> str:
        """Go back to the backup; returns that in words."""
        lost = self.global_step
        step = self._backup.put_back()
        self.data.count(step - lost, reads_ahead=True)
        self.go_to(step)
        return f"; back to step {step}, {lost - step} steps earlier" if lost > step else f" in step {lost + 1}"

    def _look_at_data(self, built: BuiltModel) -> None:
        first = self._agreement.require_same_data(built)
        self._link.be("building its model", together=True)
        if first is not None:
            self.log(f"WARNING: {first}")

    def _say(self, text: str) -> None:
        """Print a line on any worker, at once."""
        super().log(text)
        sys.stdout.flush()
