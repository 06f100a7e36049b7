"""Reading batches in the compiled loop does not deadlock with few TensorFlow threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.preloaded import Program
from tests.tiny import environment

PROGRAM = """
import sys
import tensorflow as tf
from prototrain import SimpleTrainer, SyncReplicatedTrainer
from prototrain.callbacks import StopOnNaN, Summaries, Validation
from tests.tiny import tiny_arrays, tiny_model

tf.config.threading.set_inter_op_parallelism_threads(int(sys.argv[1]))
tf.config.threading.set_intra_op_parallelism_threads(1)


def datasets():
    def slow(batch):
        return {**batch, "x": tf.linalg.matmul(batch["x"], tf.linalg.inv(tf.eye(4)))}

    data = tf.data.Dataset.from_tensor_slices(tiny_arrays()).shuffle(64).batch(8, drop_remainder=True)
    data = data.map(slow, num_parallel_calls=4, deterministic=True).prefetch(2)
    return {"trn": data, "vld": data}


model = tiny_model(datasets=datasets)
trainer = SimpleTrainer(model) if sys.argv[2] == "1" else SyncReplicatedTrainer(model, "cpu:2")
assert trainer.data.endless
trainer.train([Validation().every(steps=40), Summaries().every(steps=50), StopOnNaN()], max_steps=200)
print("done", trainer.global_step)
"""


@pytest.mark.slow
def test_no_deadlock_with_few_threads(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    programs = [Program(["program.py", number, number], environment(), tmp_path) for number in ("1", "2")]
    try:
        for process in programs:
            assert process.wait(60) == 0, process.stdout.read()
            assert "done 200" in process.stdout.read()
    finally:
        for process in programs:
            process.kill()
