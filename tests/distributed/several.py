"""A program that starts workers, for the tests: ``several.py EXPERIMENT WORKERS STEPS [ACT STEP ...]``.

A worker acts once in each start that trains: it is killed or stopped, or a callback of its raises an error.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))


def work() -> None:
    import tensorflow as tf

    from prototrain import MultiWorkerTrainer
    from prototrain.callbacks import EarlyStopping, JSONWriter, LearningRate, ModelSaver, SaveOnExit, Summaries
    from prototrain.experiment.record import read_attempts
    from tests.tiny import At, tiny_arrays, tiny_model

    experiment, _, steps, *acts = sys.argv[1:]
    begun = len(read_attempts(Path(experiment, "run.json")))
    act, at = [*acts, "", "0"][2 * begun :][:2] if 2 * begun <= len(acts) else ("", "0")

    def act_in_last_worker() -> None:
        if trainer.worker.index == trainer.workers - 1:
            if act == "fail":
                raise RuntimeError("a callback failed")
            os.kill(os.getpid(), getattr(signal, act))

    def datasets() -> dict[str, tf.data.Dataset]:
        examples = tf.data.Dataset.from_tensor_slices(tiny_arrays(64))
        return {"trn": examples.shuffle(64, seed=3).repeat().batch(8)}

    model = tiny_model(datasets=datasets, model__batch_size=8, trainer__cluster_timeout=15.0)
    trainer = MultiWorkerTrainer(model, experiment=experiment)
    callbacks = [LearningRate(lambda step: 0.02), Summaries().every(steps=1), JSONWriter()]
    # All workers decide by what `Summaries` has recorded.
    callbacks += [EarlyStopping("trn/loss", mode="min", patience=1000).every(steps=1)]
    callbacks += [ModelSaver().every(steps=10), SaveOnExit()]
    if act:
        callbacks.append(At(int(at), act_in_last_worker))
        callbacks[-1].chief_only = False
    trainer.train(callbacks, max_steps=int(steps))


if __name__ == "__main__":
    from prototrain import distributed
    from prototrain.errors import ClusterError

    print(os.getpid(), flush=True)
    try:
        distributed.run(work, workers=int(sys.argv[2]))
    except ClusterError as error:
        print(f"ClusterError: {error}")
        sys.exit(1)
