"""One of several processes that train together in a test: ``worker.py JSON``; prints one line of JSON at its end."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import numpy as np
import tensorflow as tf

from prototrain import Callback
from prototrain.callbacks import ExponentialMovingAverage, JSONWriter, LearningRate, SaveOnExit, StopOnNaN, Validation
from prototrain.errors import PrototrainError, StopTraining
from prototrain.trainers.multi_worker import MultiWorkerTrainer
from prototrain.trainers.tower import SimpleTrainer
from tests.tiny import tiny_arrays, tiny_build, tiny_model
from tests.trainers.test_replicated import endless, plain_build, poisoned


class Act(Callback):
    """Does something at a step, on the worker that it is asked of."""

    chief_only = False

    def __init__(self, what: str, step: int, victim: Path) -> None:
        self.what, self.step, self.victim = what, step, victim

    def next_step(self, step: int) -> int | None:
        return self.step if step < self.step else None

    def trigger_step(self) -> None:
        match self.what:
            case "signal":
                os.kill(os.getpid(), signal.SIGTERM)
            case "save":
                os.kill(os.getpid(), signal.SIGUSR1)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "kill":
                os.kill(int(self.victim.read_text()), signal.SIGKILL)
            case "stop":
                raise StopTraining("enough")
            case "fail":
                raise RuntimeError("a callback failed")
            case "freeze":
                os.kill(os.getpid(), signal.SIGSTOP)


def _pid_file(order: dict[str, Any], index: int) -> Path:
    return Path(f"{order.get('experiment')}-{index}.pid")


def _datasets(order: dict[str, Any]) -> Callable[[], dict[str, tf.data.Dataset]]:
    if "poisoned" in order:
        made: Callable[[], dict[str, tf.data.Dataset]] = poisoned(*order["poisoned"])
        return made
    if "missing" in order:
        raise_missing = Path(order["missing"]).read_text
        return lambda: {"trn": raise_missing()}  # type: ignore[dict-item]
    if "files" in order:
        return lambda: from_files(order["files"])
    if "rows" in order:
        return lambda: _generated(order["rows"])
    return lambda: endless(order.get("batch", 8))


def from_files(directory: str) -> dict[str, tf.data.Dataset]:
    """Examples from text files, of which each has its own and which are shuffled."""
    names = tf.data.Dataset.list_files(f"{directory}/*.csv", shuffle=False)

    def example(line: tf.Tensor) -> dict[str, tf.Tensor]:
        numbers = tf.strings.to_number(tf.strings.split(line, ","))
        return {"x": tf.ensure_shape(numbers[:4], [4]), "y": tf.cast(numbers[4], tf.int32)}

    examples = names.interleave(tf.data.TextLineDataset, cycle_length=2).map(example)
    return {"trn": examples.shuffle(8, seed=4).batch(8), "vld": examples.batch(8).take(2)}


def _generated(rows: int) -> dict[str, tf.data.Dataset]:
    """Data whose length nobody knows before it ends."""
    arrays = tiny_arrays(rows)
    spec = tf.data.Dataset.from_tensor_slices(arrays).element_spec
    each = [{name: values[row] for name, values in arrays.items()} for row in range(rows)]
    return {"trn": tf.data.Dataset.from_generator(lambda: iter(each), output_signature=spec).batch(8)}


def main(order: dict[str, Any]) -> dict[str, Any]:
    index = order.get("index", 0)
    model = tiny_model(
        build=plain_build if order.get("plain") else tiny_build,
        datasets=_datasets(order),
        model__batch_size=order.get("batch", 8),
        **order.get("config", {}),
    )
    callbacks: list[Callback] = [StopOnNaN()]
    callbacks.insert(0, LearningRate(lambda step: 0.02 * 0.9 ** (step / 10)))
    if order.get("experiment"):
        callbacks += [Validation().every(steps=7), JSONWriter(), SaveOnExit()]
    if index == order.get("actor"):
        callbacks.append(Act(order["act"], order["at"], _pid_file(order, order.get("victim", index))))
    if order.get("averaged"):
        callbacks.append(ExponentialMovingAverage(0.9))
    if order.get("experiment"):
        _pid_file(order, index).write_text(str(os.getpid()))
    found: dict[str, Any] = {"index": index}
    trainer: Any = None
    try:
        kind = MultiWorkerTrainer if "TF_CONFIG" in os.environ else SimpleTrainer
        trainer = kind(model, experiment=order.get("experiment"))
        trainer.train(callbacks, max_steps=order.get("steps", 20))
    except (PrototrainError, RuntimeError, OSError) as error:
        found["error"] = f"{type(error).__name__}: {error}"
    except SystemExit as error:
        found["exit"] = error.code
        if trainer is None:
            return found
    if order.get("act") == "freeze":
        with suppress(ProcessLookupError):  # it waits to be continued, unless another worker has done this
            os.kill(int(_pid_file(order, order["actor"]).read_text()), signal.SIGKILL)
    if trainer is not None:
        found["step"] = trainer.global_step
        found["outputs"] = {name: float(value) for name, value in trainer.outputs.items()}
        found["resume"] = trainer.run.resume_line()
        found["weights"] = (
            {}
            if order.get("act") == "kill"
            else {
                name: np.asarray(
                    tf.convert_to_tensor(variable.values[0] if hasattr(variable, "values") else variable)
                ).tolist()
                for name, variable in trainer.variables.items()
            }
        )
    return found


if __name__ == "__main__":
    print("RESULT " + json.dumps(main(json.loads(sys.argv[1]))), flush=True)
    os._exit(0)  # TensorFlow waits for peers that are gone
