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
ACTION = '''
"""Shows what it was given."""

def add_arguments(parser):
    parser.add_argument("files", nargs="*")
    parser.add_argument("--top", type=int, default=1)

def run(model, args):
    print("mine", model.config["model.batch_size"], args.top, args.files)
'''


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model_for_actions.py").write_text(MODEL)
    (tmp_path / "action_of_mine.py").write_text(ACTION)
    (tmp_path / "no_action.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ([], [], "mine 4 1 []"),
        (["-s", "model.batch_size=3"], ["--top", "5", "a", "b"], "mine 3 5 ['a', 'b']"),
        (["-s", "model.batch_size=3"], ["a", "-s", "model.batch_size=2"], "mine 2 1 ['a']"),
    ],
)
def test_custom_action_module_gets_its_arguments(
    before: list[str], after: list[str], words: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["action", *before, "model_for_actions", "action_of_mine", *after]) == 0
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["model_for_actions", "evaluate", "--bottom"], 2, "there is no option --bottom"),
        (["model_for_actions", "action_of_mine", "--help"], 0, "Shows what it was given."),
    ],
)
def test_usage(
    arguments: list[str], code: int, words: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["action", *arguments])
    assert caught.value.code == code
    assert words in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("nothere", "no action 'nothere'"),
        ("no_action", "has no run(model, args)"),
        ("evaluate", "there is no checkpoint in experiments/m yet"),
    ],
)
def test_errors_are_one_line(directory: Path, action: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["action", "model_for_actions", action]) == 1
    said = capsys.readouterr().err
    assert said.startswith("prototrain: error: ") and said.count("\n") == 1 and words in said
    assert not (directory / "experiments").exists()
