"""Sweeps on a Ray cluster: several tasks, each of which runs one trial after the other on a machine that has room.

The tasks share the study as the commands of several machines do. If a machine is lost, Ray starts its task elsewhere,
and the trial continues from its checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Final

from prototrain.distributed.ray import ray_cluster
from prototrain.errors import SweepError
from prototrain.sweeps.plan import Plan
from prototrain.sweeps.processes import TICK_SECONDS, run_in_processes
from prototrain.sweeps.study import Study, reporting_failures
from prototrain.system.signals import StopRequest
from prototrain.system.terminal import say
from prototrain.system.tracebacks import in_one_line

_TRIES: Final = 10
_PASSED_ON: Final = ("PYTHONPATH", "TF_CPP_MIN_LOG_LEVEL")  # environment variables of this machine


def run_on_ray(
    address: str,
    plan: Plan,
    options: Mapping[str, str],
    command: Sequence[str],
    *,
    jobs: int,
    resources: Mapping[str, float],
    stop: StopRequest,
) -> None:
    """Run all remaining trials on a cluster (see `ray_cluster`), `jobs` at a time.

    `options` has the arguments of `Study` besides the plan, `resources` those of a Ray task.

    Raises:
        SweepError: a machine does not see the experiments, or the storage fails.
    """
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    if resources["num_gpus"] % 1:  # a trial with a fraction of a GPU must not take all of its memory
        environment["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    with ray_cluster(address, max(1, round(jobs * resources["num_cpus"]))):
        import ray
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # On this node, so that the lines survive the loss of another one.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        lines = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        task = ray.remote(max_retries=_TRIES, **resources)(_run_trials)
        running = tasks = [task.remote(plan, options, command, os.getcwd(), environment, lines) for _ in range(jobs)]
        is_told = False
        while running:
            running = ray.wait(running, num_returns=len(running), timeout=TICK_SECONDS)[1]
            for line in lines.get_nowait_batch(lines.qsize()):
                say(line)
            if stop.signum is not None and not is_told:
                is_told = True
                for one in running:
                    ray.cancel(one)  # like Ctrl-C: its trial saves and stops
        for one in tasks:
            try:
                ray.get(one)
            except (ray.exceptions.TaskCancelledError, ray.exceptions.WorkerCrashedError):
                continue  # the study tells which trials are left
            except ray.exceptions.RayTaskError as error:
                raise SweepError(in_one_line(error.cause)) from error


def _run_trials(
    plan: Plan, options: Mapping[str, str], command: list[str], directory: str, environment: dict[str, str], lines: Any
) -> None:
    """Run trials in a Ray task until none is left."""
    with suppress(FileNotFoundError):
        os.chdir(directory)
    if not plan.locks.exists():
        where = f"{os.uname().nodename} does not see {plan.locks.absolute()}"
        raise SweepError(f"{where}: set trainer.experiment_base_dir to storage that all share")
    os.environ |= environment
    stop = StopRequest(lambda _: None, saves=False)  # the command itself has announced the stop
    with reporting_failures(options["storage"]), closing(Study(plan, **options)) as shared, stop:
        run_in_processes(shared, command, jobs=1, stop=stop, say=lines.put)
