"""Several processes, on one machine or many, that train one model together."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import keras
import tensorflow as tf

from prototrain.cluster import COLLECTIVES, Exchange, connect, find_cluster
from prototrain.errors import ConfigError, ExperimentError, NonFiniteError, StepError, StopTraining
from prototrain.experiment import Experiment
from prototrain.experiment.provenance import config_provenance, differences
from prototrain.step.compiled_call import CompiledCall
from prototrain.system.signals import LeavingAtOnce, StopRequest
from prototrain.system.waiting import announcing
from prototrain.towers import components
from prototrain.trainers.placement import Placement
from prototrain.trainers.replicated import BatchMeaning, SyncTrainer
from prototrain.trainers.step_plan import step_plan

if TYPE_CHECKING:
    from prototrain.model import ModelProtocol

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

    Start one process per worker with the same command. ``TF_CONFIG`` or Slurm's variables say who is who. All workers
    read the same data and each takes its part of every batch; only the chief, which is the first worker, writes. The
    experiment directory must be one that all workers can read, or a run cannot be resumed.

    Args:
        model: an object with `config`, `datasets()` and `build(inputs, train_phase)`.
        batch: whether ``model.batch_size`` is that of a step ("global") or that of a tower ("per_tower").
        reduction: how gradients are combined: "nccl" between GPUs, "ring" over the network, or TensorFlow's choice.
        experiment: the directory of the run, if it is to leave anything behind.

    Raises:
        ConfigError: there is no description of the cluster, TensorFlow has started before this, the batch does not
            divide by the number of towers, or the workers were started with different configs.
    """

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
        strategy, self.worker = connect() if reduction == "auto" else connect(reduction)
        self._exchange = Exchange(strategy, self.worker)
        self._require_same("the config", config_provenance(model.config))
        first_tower = strategy.num_replicas_in_sync // self.worker.count * self.worker.index
        placement = Placement(strategy, first_tower=first_tower)
        super().__init__(model, experiment=experiment, placement=placement, batch=batch)
        self.is_chief = self.worker.is_chief
        self.stop = AgreedStop(self.log)
        self._backup = Backup(self)
        self._parted = self._connection_broken = False
        self._require_same("the model", {"code": self.built.code, "variables": list(self.variables)})

    @classmethod
    def prepare(cls) -> None:
        connect()

    @classmethod
    def leads(cls) -> bool:
        return find_cluster()[1].is_chief

    @contextmanager
    def _around_run(self) -> Iterator[None]:
        self._parted = self._connection_broken = False
        with announcing("waiting for the other workers"), LeavingAtOnce():
            self._exchange.numbers(0)  # nobody looks for a checkpoint before the chief has cleared the directory
        try:
            with super()._around_run():
                yield
        finally:
            self._part()
            self._say_goodbye()

    def run_steps(self, n: int) -> int:
        agreed = self._agree(min(n, self.call.longest))
        self._backup.take()
        try:
            return self._run_call(agreed)
        except NonFiniteError:
            self._parted = True  # averaged gradients are the same everywhere: all workers end here
            raise
        except StepError as error:
            self._parted = self._connection_broken = True  # a failed step ends the connection between the workers
            if isinstance(error.__cause__, tf.errors.OpError) and "ollective" in str(error.__cause__):
                raise self._after_loss(error) from error
            raise

    def make_call(self) -> CompiledCall:
        # Several workers have no step that is seen alone: its graph would be another one on each of them.
        return CompiledCall(step_plan(self, may_be_watched=False), self._stop_variable)

    def model_state(self) -> list[Any]:
        """The variables in `state`."""
        return [entry for entry in self.state.values() if isinstance(entry, (tf.Variable, keras.Variable))]

    def log(self, text: str) -> None:
        if self.worker.is_chief or text.startswith("WARNING"):
            super().log(text)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "workers": self.worker.count}

    def provenance(self) -> dict[str, Any]:
        return {**super().provenance(), "workers": self.worker.count}

    def _save_if_asked(self) -> None:
        pass  # which only the chief can do, whoever was asked: see `_agree`

    # -- agreeing -----------------------------------------------------------------------------------------------------

    def _agree(self, n: int, *, leaves: bool = False) -> int:
        """Tell the others how many steps this worker can do, and whether it has to stop, ends the run or is to save.

        Returns:
            how many steps all workers can do.

        Raises:
            ExperimentError: the workers are not at the same step.
            StopTraining: another worker ends the run.
            KeyboardInterrupt, SystemExit: a worker was asked to stop, by the signal that it has got.
        """
        wanted = self.stop.wanted or 0
        try:
            told = self._exchange.numbers(n, self.global_step, wanted, leaves, self.stop.take_save())
        except tf.errors.OpError as error:
            self._parted = self._connection_broken = True
            raise StepError(f"{_LOST} before step {self.global_step + 1}") from error
        if leaves:
            return 0
        self._parted = bool(told[:, 2:4].any())
        steps = {int(step) for step in told[:, 1]}
        if told[:, 3].any():
            raise StopTraining(f"worker {int(told[:, 3].argmax())} has ended the run")
        if len(steps) > 1:
            self._parted = True
            raise ExperimentError(
                f"the workers are at different steps ({', '.join(map(str, sorted(steps)))}): all of them must be able "
                "to read the chief's experiment directory"
            )
        if told[:, 4].any():
            self.session.save_as_asked()
        if told[:, 2].any():
            self.stop.agree(int(wanted or told[:, 2].max()))
            self.stop.check()
        return int(told[:, 0].min())

    def _part(self) -> None:
        """Tell the others, which wait for this worker's next step, that there is none."""
        if not self._parted and self.global_step < self.total_steps:
            self._parted = True
            with suppress(tf.errors.OpError, StepError):
                self._agree(0, leaves=True)

    def _say_goodbye(self) -> None:
        """Wait for the others, which may still be reading this process's part of the last exchange."""
        if not self._connection_broken:
            # A worker that comes out of this first may end, which breaks the others' goodbye: all had come this far.
            with suppress(tf.errors.OpError):
                self._exchange.numbers(0)

    def _after_loss(self, error: StepError) -> StepError:
        lost = self.global_step
        step = self._backup.put_back()
        self.data.count(step - lost, reads_ahead=True)
        self.go_to(step)
        back = f"; back to step {step}, {lost - step} steps earlier" if lost > step else ""
        return StepError(f"{_LOST} in step {lost + 1}{back}: {error}")

    def _require_same(self, what: str, mine: dict[str, Any]) -> None:
        all_of_them = [json.loads(text) for text in self._exchange.texts(json.dumps(mine, sort_keys=True))]
        for index, other in enumerate(all_of_them):
            different = differences(all_of_them[0], other)
            if different:
                raise ConfigError(
                    f"the workers disagree on {what}: worker {index} was started with another one than the chief "
                    f"({'; '.join(different)}); start all of them with the same command"
                )


_LOST = "a worker is gone: the connection between the workers broke"
