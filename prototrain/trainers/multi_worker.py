"""Synchronous training with several processes, on one or more machines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from prototrain.data.source import Share, shard_for_worker
from prototrain.distributed.checks import require_same, require_same_data, require_same_settings, require_shared
from prototrain.distributed.cluster import connect, find_cluster
from prototrain.distributed.sync import AgreedStop, WorkerSync, is_of_peers, launcher, report
from prototrain.errors import ConfigError, ExperimentError, NonFiniteError, StopTraining
from prototrain.experiment import Experiment
from prototrain.experiment.facts import Facts
from prototrain.model.placement import Placement
from prototrain.step.calls import StepCalls
from prototrain.step.loop import CompiledCalls, Iteration
from prototrain.system.signals import LeavingAtOnce
from prototrain.system.tracebacks import in_one_line
from prototrain.towers import choose_devices, describe_devices
from prototrain.trainers.optimization import rate
from prototrain.trainers.tower import TowerTrainer

if TYPE_CHECKING:
    from prototrain.callbacks.base import Callback
    from prototrain.model import ModelProtocol
    from prototrain.model.built import BuiltModel


class MultiWorkerTrainer(TowerTrainer):
    """Trains with several processes, each with its own GPUs or CPU, that average their gradients.

    ``prototrain run --workers N`` and `prototrain.distributed.run` start the processes. Alternatively, start each
    worker with the same command, under Slurm or with its ``TF_CONFIG``. All workers read the same data and each takes
    its part of every batch, unless ``model.data_sharding`` gives each worker a share of the data. Only the chief, which
    is the first worker, writes the experiment directory. All workers must see this directory; this is checked before
    the first step.

    Args:
        model: an object with `config`, `datasets()` and `build(inputs, train_phase)`.
        experiment: the experiment directory, or its path. Without one the trainer writes no files.

    Raises:
        ConfigError: the class overrides `run_step`, the cluster is not described, TensorFlow has started already, the
            batch size is not divisible by the number of towers, or the workers have different configs, code or data.
        ClusterError: a worker did not connect in time, is gone, or has failed.
    """

    measures_xla = False  # the workers' timings would differ
    stop: AgreedStop

    def __init__(self, model: ModelProtocol, *, experiment: Experiment | str | Path | None = None) -> None:
        if not self.is_compiled:
            raise ConfigError(
                f"{type(self).__name__} runs compiled steps only and would not call run_step(): override train_step() "
                "instead"
            )
        strategy, self.worker = connect(timeout=model.config["trainer.cluster_timeout"])
        self._sync = WorkerSync(strategy, self.worker, model.config["trainer.stall_timeout"])
        towers = strategy.num_replicas_in_sync // self.worker.count
        self.share = Share(self.worker.index, self.worker.count, model.config["model.data_sharding"])
        placement = Placement(
            strategy, first_tower=towers * self.worker.index, own_towers=towers if self.share.is_divided else None
        )
        with LeavingAtOnce(), self._sync.failing_together():
            require_same_settings(self._sync, model, self)
            super().__init__(model, experiment=experiment, placement=placement)
            require_same(self._sync, "the model", {"variables": list(self.variables)})
        self.is_chief, self.workers = self.worker.is_chief, self.worker.count
        self.stop = self.built.stop = AgreedStop(self._say)
        self._forget()

    def _forget(self) -> None:
        """Reset the state that belongs to one run."""
        self._is_under_way = False
        self._data_ended = False
        self._all_know = False  # whether all workers know that this one runs no more steps

    @classmethod
    def prepare(cls, timeout: float | None = None) -> None:
        connect(timeout=timeout)

    @classmethod
    def report_failure(cls, error: BaseException) -> None:
        worker = find_cluster()[1]
        if not is_of_peers(error):
            report(f"{worker.name(worker.index)} failed: {in_one_line(error)}")

    @classmethod
    def would_be_chief(cls) -> bool:
        return find_cluster()[1].is_chief

    def train(
        self, callbacks: Iterable[Callback] = (), *, resume: bool = True, fresh: bool = False, **more: Any
    ) -> None:
        # Restarted workers continue the run; they must not start it afresh a second time.
        continues = launcher.has_begun
        super().train(callbacks, resume=resume or continues, fresh=fresh and not continues, **more)

    @contextmanager
    def _around_run(self) -> Iterator[None]:
        self._forget()
        planned = self.total_steps
        with LeavingAtOnce(), self._sync.failing_together():
            # This must come before any worker looks for a checkpoint.
            require_shared(self._sync, self.experiment)
        try:
            with super()._around_run():
                yield
            if not self._all_know and self.global_step < planned:
                self._agree(0, ended=True)
            self._sync.wait_for_all()
        except (KeyboardInterrupt, SystemExit) as error:
            if not self._all_know:
                self._sync.fail(error)
            self._sync.wait_for_all()
            raise
        except NonFiniteError:
            raise  # averaged gradients are the same on all workers, so all of them end here
        except BaseException as error:
            self._sync.fail(error)
        finally:
            self._sync.stop_watching()

    def run_steps(self, n: int) -> int:
        self._check_settings()
        if not self._is_under_way:
            self._is_under_way = launcher.has_begun = True
            if launcher.restarts:
                self.run.note(restarts=launcher.restarts, cause=launcher.cause)
            if self.is_chief:
                self.monitors.put_scalar("cluster/restarts", launcher.restarts)
                self.monitors.put_scalar("cluster/workers", self.worker.count)
        agreed = self._agree(min(n, self.calls.max_steps))
        steps = self._run_compiled(agreed)
        self._data_ended = steps < agreed
        return steps

    def _agree(self, n: int, *, ended: bool = False) -> int:
        """Return the number of steps that all workers can run in the next call, unless the run ends here."""
        agreement = self._sync.agree(
            n,
            step=self.global_step,
            batches=self.data.total,
            rate=rate(self.optimizer) if isinstance(self.optimizer, keras.optimizers.Optimizer) else 0.0,
            save=self.stop.pop_save_request(),
            signum=self.stop.wanted,
            ended=ended,
            data_ended=self._data_ended,
        )
        if len(set(agreement.places)) > 1:
            places = ", ".join(
                f"worker {i}: step {step}, batch {batch}" for i, (step, batch) in enumerate(agreement.places)
            )
            raise ExperimentError(
                f"the workers are at different places ({places}): all of them must see the chief's experiment "
                "directory and read the same data"
            )
        is_over = agreement.signum is not None or agreement.ended is not None
        if not is_over and not np.allclose(agreement.rates, agreement.rates[0], rtol=1e-5, atol=0.0, equal_nan=True):
            rates = ", ".join(f"worker {i}: {value:g}" for i, value in enumerate(agreement.rates))
            raise ConfigError(
                f"the learning rate differs between the workers ({rates}): a callback sets it on some only; use "
                "LearningRate, or one with `chief_only = False` that decides the same on all workers"
            )
        self._all_know = is_over
        if agreement.signum is not None:
            self.stop.agree(agreement.signum)
            self.stop.check()
        if ended:
            return 0
        if agreement.ended is not None:
            raise StopTraining(f"{self.worker.name(agreement.ended)} has ended the run")
        if agreement.save:
            self.run.save_as_asked()
        return agreement.steps

    def _of_chief(self, get: Callable[[], Any]) -> Any:
        with self._sync.failing_together():
            return self._sync.exchange(get() if self.is_chief else None)[0]

    def make_calls(self) -> StepCalls:
        # A separate watched step could be a different graph on each worker.
        return CompiledCalls(Iteration(self, may_be_watched=False), self._stop_variable)

    def make_datasets(self) -> dict[str, tf.data.Dataset]:
        return shard_for_worker(super().make_datasets(), self.share, self.global_batch // self.worker.count)

    def log(self, text: str) -> None:
        if self.worker.is_chief or text.startswith("WARNING"):
            super().log(text)

    def describe(self) -> dict[str, Any]:
        devices = f"{describe_devices(choose_devices(None))} of each worker"
        rows = {**super().describe(), "devices": devices, "workers": self.worker.count, "data": self.share.division}
        if launcher.restarts:  # the rest was printed at the first start
            again = f"restart {launcher.restarts}: {launcher.cause}"
            return {"workers": rows["workers"], "start": rows["start"], "started again": again}
        return rows

    def _facts(self) -> Facts:
        return {**super()._facts(), "workers": self.worker.count}

    def _save_if_asked(self) -> None:
        pass  # `_agree` makes the chief save, whichever worker got the signal

    def _check_data(self, built: BuiltModel) -> None:
        super()._check_data(built)
        if (warning := require_same_data(self._sync, built)) is not None:
            self.log(f"WARNING: {warning}")

    def _say(self, text: str) -> None:
        """Print a line at once, also on workers other than the chief."""
        super().log(text)
        sys.stdout.flush()
