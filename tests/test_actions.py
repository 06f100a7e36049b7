"""Actions: what stands beside training on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from prototrain.cli import main

MODEL = """
import tensorflow as tf
from prototrain import Config
config = Config({"trainer.experiment_name": "m", "model.batch_size": 4, "model.num_steps": 2,
    "model.lr_schedule.method": "constant", "model.lr_schedule.constant.value": 0.1, "model.optimizer.method": "sgd"})
def datasets():
    return {"trn": tf.data.Dataset.from_tensor_slices({"x": [[1.0]] * 8}).batch(4)}
def build(inputs, train_phase):
    weight = tf.Variable(2.0, name="weight")
    return {"y": inputs["x"] * weight, "loss": tf.reduce_mean(inputs["x"] * weight)}
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model_for_actions.py").write_text(MODEL)
    (tmp_path / "action_of_mine.py").write_text("def run(model, args): print('mine', model.config['model.batch_size'])")
    (tmp_path / "no_action.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_inspect_prints_variables_tensors_and_callbacks(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["action", "model_for_actions", "inspect"]) == 0
    printed = capsys.readouterr().out
    for words in ("weight", "[4, 1]", "Validation", "every 100 steps", "SaveOnExit"):
        assert words in printed
    assert not (directory / "experiments").exists()


def test_a_module_of_ones_own(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["action", "model_for_actions", "action_of_mine", "-s", "model.batch_size=3"]) == 0
    assert "mine 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("action", "words"), [("nothere", "no action 'nothere'"), ("no_action", "has no run(model, args)")]
)
def test_what_is_no_action(directory: Path, action: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["action", "model_for_actions", action]) == 1
    assert words in capsys.readouterr().err
