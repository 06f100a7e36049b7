"""Several workers, each of which reads its own part of the training data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain.callbacks import LearningRate
from prototrain.data.source import Share, shared_out
from prototrain.trainers.tower import SimpleTrainer
from tests.tiny import tiny_arrays, tiny_model
from tests.trainers import processes
from tests.trainers.test_replicated import plain_build
from tests.trainers.worker import from_files


def write_files(directory: Path) -> None:
    """The tiny classifier's examples in three files that are not equally long."""
    directory.mkdir()
    arrays = tiny_arrays()
    lines = [",".join(map(str, [*x, y])) for x, y in zip(arrays["x"], arrays["y"], strict=True)]
    for number, part in enumerate((lines[:9], lines[9:20], lines[20:])):
        (directory / f"{number}.csv").write_text("\n".join(part) + "\n")


@pytest.mark.slow
def test_the_global_batch_is_all_workers_own_parts_in_their_order_and_a_resume_is_exact(tmp_path: Path) -> None:
    write_files(tmp_path / "data")
    order: dict[str, Any] = {
        "files": str(tmp_path / "data"),
        "plain": True,
        "config": {"model__data_sharding": "files"},
        "experiment": str(tmp_path / "run"),
    }
    processes.run(["worker"] * 2, steps=9, **order)
    results = processes.run(["worker"] * 2, steps=20, **order)

    def datasets() -> dict[str, tf.data.Dataset]:
        shares = [shared_out(from_files(order["files"]), Share(i, 2, "files"), 4)["trn"] for i in range(2)]
        both = tf.data.Dataset.zip(*shares)
        return {"trn": both.map(lambda one, other: {name: tf.concat([one[name], other[name]], 0) for name in one})}

    alone = SimpleTrainer(tiny_model(build=plain_build, datasets=datasets))
    alone.train([LearningRate(lambda step: 0.02 * 0.9 ** (step / 10))], max_steps=20)
    for result in results:
        assert result is not None and "error" not in result, result
        assert result["resume"].startswith("resumed at step 9")
        assert result["weights"] == results[0]["weights"]  # type: ignore[index]
        for name, variable in alone.variables.items():
            np.testing.assert_allclose(result["weights"][name], variable.numpy(), rtol=1e-3, atol=1e-4, err_msg=name)
