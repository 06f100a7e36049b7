from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain.actions import restore
from prototrain.callbacks import averaged_weights
from prototrain.errors import CheckpointError
from prototrain.trainers.tower import SimpleTrainer
from tests.actions.conftest import model_in


@pytest.fixture
def copied(trained: SimpleTrainer, base: Path, tmp_path: Path) -> Path:
    """A copy of the trained experiment that a test may damage."""
    return shutil.copytree(base / "tiny", tmp_path / "tiny")


def arrays(variables: Any) -> dict[str, Any]:
    return {name: np.asarray(variable) for name, variable in variables.items()}


def test_newest_checkpoint_with_moving_averages(trained: SimpleTrainer, base: Path) -> None:
    restored = restore(model_in(base))
    expected = {**arrays(trained.variables), **arrays(averaged_weights(trained.state))}
    assert arrays(restored.built.variables).keys() == trained.variables.keys()
    for name, value in arrays(restored.built.variables).items():
        np.testing.assert_array_equal(value, expected[name])
    assert restored.describe() == {
        "model": "tiny",
        "checkpoint": f"{base}/tiny/checkpoints/step-0000000020",
        "weights": "moving averages",
    }
    assert restored.experiment.directory == base / "tiny"


@pytest.mark.parametrize(
    ("which", "step"), [("15", 15), ("best", 20), ("{base}/tiny", 20), ("{base}/tiny/checkpoints/step-0000000015", 15)]
)
def test_choice_of_checkpoint(which: str, step: int, trained: SimpleTrainer, base: Path, tmp_path: Path) -> None:
    # A path takes precedence over the experiment in the config.
    named = base if "/" not in which else tmp_path
    restored = restore(model_in(named), which.format(base=base))
    assert restored.checkpoint.step == step and restored.experiment.directory == base / "tiny"


def test_checkpoint_without_experiment_and_changed_facts(copied: Path, tmp_path: Path) -> None:
    alone = (copied / "checkpoints" / "step-0000000020").rename(tmp_path / "mine")
    restored = restore(model_in(tmp_path, model__batch_size=4), str(alone))
    assert restored.experiment.directory == tmp_path / "tiny" and restored.checkpoint.step == 20
    assert restored.describe()["changed since"] == "model.batch_size 8 -> 4"


def write(name: str, text: str) -> Any:
    return lambda copied: (copied / name).write_text(text)


@pytest.mark.parametrize(
    ("spoil", "which", "words"),
    [
        (shutil.rmtree, None, "there is no checkpoint in .*tiny yet; train the model first"),
        (lambda copied: None, "7", "tiny has no checkpoint of step 7; there are 15, 20"),
        (write("checkpoints/step-0000000020/model.index", ""), None, "is damaged: the content of model.index does not"),
        (write("checkpoints/max-x.json", '{"stat": "x", "step": 15}'), "best", "x at step 15, vld/loss at step 20; na"),
        (write("environment.json", '{"run_id": "other"}'), None, "belongs to another run"),
    ],
)
def test_wrong_checkpoint_is_one_line(spoil: Any, which: str | None, words: str, copied: Path) -> None:
    spoil(copied)
    with pytest.raises(CheckpointError, match=words) as caught:
        restore(model_in(copied.parent), which)
    assert "\n" not in str(caught.value)


def test_checkpoint_of_another_model_names_the_changes(trained: SimpleTrainer, base: Path) -> None:
    def build(inputs: Any, train_phase: bool) -> Any:
        logits = keras.layers.Dense(3, name="logits")(inputs["x"])
        return {"loss": tf.reduce_mean(logits)}

    with pytest.raises(CheckpointError, match=r"logits/bias is float32\[2\] in the checkpoint") as caught:
        restore(model_in(base, build=build, model__width=3))
    assert str(caught.value).endswith("since it was written, model.width null -> 3")
