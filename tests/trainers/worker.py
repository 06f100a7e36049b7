"""One of two processes that train together in a test: ``worker.py JSON``; prints one line of JSON at its end."""

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
from prototrain.callbacks import (
    CallbackFactory,
    EarlyStopping,
    JSONWriter,
    LearningRate,
    SaveOnExit,
    StopOnNaN,
    Validation,
)
from prototrain.errors import PrototrainError, StopTraining
from prototrain.trainers.multi_worker import MultiWorkerTrainer
from tests.tiny import At, tiny_arrays, tiny_build, tiny_model
from tests.trainers.test_replicated import endless, plain_build, poisoned

SIGNALS = {"stop": signal.SIGTERM, "save": signal.SIGUSR1, "die": signal.SIGKILL, "freeze": signal.SIGSTOP}


def act(what: str) -> None:
    """The action of a worker at a step, if requested."""
    if what == "fail":
        raise RuntimeError("a callback failed")
    if what == "leave":
        raise StopTraining("enough")
    os.kill(os.getpid(), SIGNALS[what])


def _datasets(order: dict[str, Any]) -> Callable[[], dict[str, tf.data.Dataset]]:
    if "poisoned" in order:
        made: Callable[[], dict[str, tf.data.Dataset]] = poisoned(*order["poisoned"])
        return made
    if "missing" in order:
        return lambda: {"trn": Path(order["missing"]).read_text()}  # type: ignore[dict-item]
    if "files" in order:
        return lambda: from_files(order["files"])
    if "rows" in order:
        return lambda: _generated(order["rows"])
    return endless


def from_files(directory: str) -> dict[str, tf.data.Dataset]:
    """Examples from the worker's own text files, shuffled."""
    names = tf.data.Dataset.list_files(f"{directory}/*.csv", shuffle=False)

    def example(line: tf.Tensor) -> dict[str, tf.Tensor]:
        numbers = tf.strings.to_number(tf.strings.split(line, ","))
        return {"x": tf.ensure_shape(numbers[:4], [4]), "y": tf.cast(numbers[4], tf.int32)}

    examples = names.interleave(tf.data.TextLineDataset, cycle_length=2).map(example)
    return {"trn": examples.shuffle(8, seed=4).batch(8), "vld": examples.batch(8).take(2)}


def _generated(rows: int) -> dict[str, tf.data.Dataset]:
    """Data of unknown length."""
    arrays = tiny_arrays(rows)
    spec = tf.data.Dataset.from_tensor_slices(arrays).element_spec
    each = [{name: values[row] for name, values in arrays.items()} for row in range(rows)]
    return {"trn": tf.data.Dataset.from_generator(lambda: iter(each), output_signature=spec).batch(8)}


def main(order: dict[str, Any]) -> dict[str, Any]:
    experiment, build = order.get("experiment"), plain_build if order.get("plain") else tiny_build
    model = tiny_model(build=build, datasets=_datasets(order), **order.get("config", {}))
    callbacks: list[Callback] = [LearningRate(lambda step: 0.02 * 0.9 ** (step / 10)), StopOnNaN()]
    if experiment:
        callbacks += [Validation().every(steps=7), JSONWriter(), SaveOnExit()]
        Path(f"{experiment}-{order['index']}.pid").write_text(str(os.getpid()))
    if "patience" in order:
        stops = EarlyStopping("vld/loss", mode="min", patience=order["patience"], min_delta=1e9, restore_best=True)
        callbacks.append(stops.every(steps=7))
    if "halves" in order:
        halves = CallbackFactory(trigger=lambda self: self.trainer.optimizer.learning_rate.assign(0.123))
        callbacks = [halves.every(steps=order["halves"])]
    if "leaves" in order:
        halves = CallbackFactory(trigger=lambda self: self.trainer.optimizer.learning_rate.assign(0.123))
        halves.chief_only = False
        callbacks.append(halves)
    if order["index"] == order.get("actor"):
        acts = At(order["at"], lambda: act(order["act"]))
        acts.chief_only = False
        callbacks.append(acts)
    found: dict[str, Any] = {}
    trainer: Any = None
    try:
        trainer = MultiWorkerTrainer(model, experiment=experiment)
        trainer.train(callbacks, max_steps=order.get("steps", 20))
    except (PrototrainError, RuntimeError, OSError) as error:
        found["error"] = f"{type(error).__name__}: {error}"
    except SystemExit as error:
        found["exit"] = error.code
    if order.get("act") == "freeze":
        with suppress(ProcessLookupError):  # it waits for SIGCONT
            os.kill(int(Path(f"{experiment}-{order['actor']}.pid").read_text()), signal.SIGKILL)
    if trainer is not None:
        found["step"] = trainer.global_step
        found["outputs"] = {name: float(value) for name, value in trainer.outputs.items()}
        found["resume"] = trainer.run.start_row()
        found["weights"] = {name: _value(variable) for name, variable in trainer.variables.items()}
    return found


def _value(variable: Any) -> Any:
    first = variable.values[0] if hasattr(variable, "values") else variable
    return np.asarray(tf.convert_to_tensor(first)).tolist()


if __name__ == "__main__":
    print("RESULT " + json.dumps(main(json.loads(sys.argv[1]))), flush=True)
    os._exit(0)  # TensorFlow waits for peers that are gone
