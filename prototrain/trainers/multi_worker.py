"""Several processes, on one machine or many, that train one model together."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tensorflow as tf

from prototrain.cluster import COLLECTIVES, connect, find_cluster, own_link
from prototrain.cluster.agreed_stop import AgreedStop
from prototrain.cluster.agreement import WORD_SECONDS, Agreement, LeavingTogether
from prototrain.cluster.call_watch import CallWatch
from prototrain.cluster.shared_directory import require_shared
from prototrain.cluster.supervision import own_supervision
from prototrain.data.shares import OwnPlaces, Share, shared_out
from prototrain.errors import ClusterError, ConfigError, NonFiniteError, StepError, StopTraining
from prototrain.experiment import Experiment
from prototrain.experiment.facts import Facts
from prototrain.model.placement import Placement
from prototrain.step.calls import CompiledCalls, StepCalls
from prototrain.step.variables import scratch_variable
from prototrain.system.tracebacks import in_one_line
from prototrain.towers import choose_devices, in_words
from prototrain.trainers.backup import Backup
from prototrain.trainers.compiled_steps import step_plan
from prototrain.trainers.peers import Peers
from prototrain.trainers.replicated import BatchMeaning, SyncTrainer

if TYPE_CHECKING:
    from prototrain.callbacks.base import Callback
    from prototrain.model import ModelProtocol
    from prototrain.model.built import BuiltModel


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
        ConfigError: the class has a `run_step` of its own, there is no description of the cluster, TensorFlow has
            started before this, the batch does not divide by the number of towers, or the workers were started with
            different configs, code or data.
        ClusterError: a worker has not come in time, or has failed.
    """

    measures_xla = False  # each worker would measure something else
    stop: AgreedStop

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
        if not self.is_compiled:
            raise ConfigError(
                f"{type(self).__name__} runs compiled steps only, in which all workers meet, and would not call "
                "run_step(): override train_step() instead"
            )
        timeout = model.config["trainer.cluster_timeout"]
        strategy, self.worker = connect(reduction, timeout=timeout)
        self._link, self._supervision = own_link(), own_supervision()
        self._link.limits.silence, self._link.limits.stall = timeout, model.config["trainer.stall_timeout"]
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
        self._peers = Peers(self, self._link, self._watch, self._say)

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
        self._peers.forget()
        planned = self.total_steps
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
            self._peers.part(planned, error)

    def run_steps(self, n: int) -> int:
        self.check_rate()
        if not self._peers.has_begun:
            self._tell_of_start()
        agreed = self._peers.agree(min(n, self.calls.longest))
        self._backup.take()
        self._begun.assign(self.global_step)
        try:
            with self._watch.under_way(self.global_step):
                steps = self._steps.run(agreed)
        except NonFiniteError:
            self._peers.has_parted = True  # averaged gradients are the same everywhere: all workers end here
            raise
        except StepError as error:
            self._peers.has_parted = True
            raise self._after_break(error) from error
        except StopTraining:  # the data has ended, which it should have everywhere
            self._peers.ended = self.global_step
            self._peers.agree(0)
            self._peers.has_parted = True
            raise
        except Exception as error:  # the others are in the step already
            self._peers.has_parted = True
            self._link.fail(in_one_line(error))
            raise
        self._peers.ended = self.global_step if steps < agreed else None
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
        if self._supervision is not None and self._peers.has_begun:
            self._supervision.step = step

    def make_calls(self) -> StepCalls:
        # Several workers have no step that is seen alone: its graph would be another one on each of them.
        plan = step_plan(self, may_be_watched=False)

        def before_run(step: tf.Tensor) -> None:
            self._begun.assign(step + 1)
            plan.before_run(step)

        return CompiledCalls(dataclasses.replace(plan, before_run=before_run), self._stop_variable)

    def make_datasets(self) -> dict[str, tf.data.Dataset]:
        return shared_out(super().make_datasets(), self.share, self.global_batch // self.worker.count)

    def start_save(self, *, gives_way: bool = True) -> Callable[[], Path]:
        self._backup.expire()
        self._peers.has_saved = True
        return super().start_save(gives_way=gives_way)

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

    def describe_variables(self) -> tuple[str, str] | None:
        is_again = self._supervision is not None and self._supervision.group.cause is not None
        return None if is_again else super().describe_variables()

    def attempt_facts(self) -> dict[str, Any]:
        facts = {**super().attempt_facts(), "workers": self.worker.count}
        if self._supervision is not None:
            facts |= {"restarts": self._supervision.group.restarts, "cause": self._supervision.group.cause}
        return facts

    def facts(self) -> Facts:
        return {**super().facts(), "workers": self.worker.count}

    def _save_if_asked(self) -> None:
        pass  # which only the chief can do, whoever was asked: see `Peers.agree`

    # -- whoever has started this worker ------------------------------------------------------------------------------

    def _share_out(self, model: ModelProtocol, towers: int, batch: BatchMeaning) -> None:
        """Say with how many workers a step can be done."""
        if self._supervision is None:
            return
        parts = model.config["model.batch_size"] // (towers * model.config["model.accumulate_steps"])
        self._supervision.shares = parts if batch == "global" else self._supervision.group.wanted

    def _tell_of_start(self) -> None:
        self._peers.begin()
        if self._supervision is None:
            return
        self._supervision.step = self.global_step
        if self.is_chief:
            self.monitors.put_scalar("cluster/restarts", self._supervision.group.restarts)
            self.monitors.put_scalar("cluster/workers", self.worker.count)

    # -- when a call has failed ---------------------------------------------------------------------------------------

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
            self._peers.stop_if_told()
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
        super()._look_at_data(built)
        first = self._agreement.require_same_data(built)
        self._link.be("building its model", together=True)
        if first is not None:
            self.log(f"WARNING: {first}")

    def _say(self, text: str) -> None:
        """Print a line on any worker, at once."""
        super().log(text)
        sys.stdout.flush()
