"""What workers of the tests do: functions that a supervisor calls in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from prototrain.cluster.supervision import own_supervision
from prototrain.errors import ClusterError, ConfigError


def act(directory: str, script: list[dict[str, Any]]) -> None:
    """Do as a script says, without TensorFlow.

    Args:
        directory: for marks; ``pids`` gets a line of each process.
        script: for each group what becomes of it, by the number of the worker: what a worker that is not named does
            follows from the others.
    """
    supervision = own_supervision()
    assert supervision is not None
    group = supervision.group
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    acts = script[min(group.restarts, len(script) - 1)]
    mark = Path(directory) / f"acted-{group.restarts}"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGUSR1, lambda *_: print("saving", flush=True))
    with open(Path(directory) / "pids", "a") as file:
        file.write(f"{os.getpid()}\n")
    print(f"group {group.restarts} of {group.workers}, because {group.cause}", flush=True)
    what, step = acts.get(str(index), ("follow", None))
    if step is not None:
        supervision.step = step
    if what == "follow":
        if any(what == "done" for what, _ in acts.values()):
            return
        while not mark.exists():
            time.sleep(0.02)
        raise ClusterError("another worker failed")
    if what == "wait":
        while not mark.exists():  # or a signal comes
            time.sleep(0.02)
        raise ClusterError("another worker failed")
    if what == "done":
        return
    time.sleep(0.7)  # for a beat that says where it is
    mark.touch()
    match what:
        case "kill" | "crash" | "freeze":
            signum = {"kill": signal.SIGKILL, "crash": signal.SIGSEGV, "freeze": signal.SIGSTOP}[what]
            os.kill(os.getpid(), signum)
            time.sleep(60)
        case "leave":
            os._exit(3)
        case "mistake":
            raise ConfigError("model.batch_size: no")
        case _:
            raise ValueError(what)


def train(directory: str, kills: list[int]) -> None:
    """Train a tiny model with all workers, and kill one of them once.

    Args:
        directory: the experiment's.
        kills: the worker that is killed in each group, behind the step at which it has begun by 12.
    """
    from prototrain import MultiWorkerTrainer
    from prototrain.callbacks import JSONWriter, LearningRate, ModelSaver, SaveOnExit, StopOnNaN, Summaries, Validation
    from tests.tiny import tiny_model
    from tests.trainers.worker import Act, endless

    supervision = own_supervision()
    assert supervision is not None
    model = tiny_model(datasets=lambda: endless(12), model__batch_size=12)
    trainer = MultiWorkerTrainer(model, experiment=directory)
    callbacks = [
        LearningRate(lambda step: 0.02 * 0.9 ** (step / 10)),
        Validation().every(steps=7),
        Summaries().every(steps=1),
        JSONWriter(),
        ModelSaver().every(steps=5),
        SaveOnExit(),
        StopOnNaN(),
    ]
    if kills[supervision.group.restarts :][:1] == [trainer.worker.index]:
        callbacks.append(Act("die", 12 * (supervision.group.restarts + 1), Path(directory)))
    trainer.train(callbacks, max_steps=40)
    if trainer.is_chief:
        print("RESULT " + json.dumps({name: float(value) for name, value in trainer.outputs.items()}), flush=True)
