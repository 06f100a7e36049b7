from __future__ import annotations

import json
from pathlib import Path

import pytest

from prototrain.cli import main
from prototrain.system.terminal import one_line
from tests.conftest import forget_models
from tests.tiny import fails

MODEL = """
import tensorflow as tf
from prototrain import Config

config = Config({
    "trainer.experiment_name": "e",
    "model.num_steps": 4,
    "model.optimizer.method": "sgd",
    "model.weight_decay.filter_fn": lambda variable: True,
    "model.units": [64, 32],
    "model.words": "a very long text that no narrow terminal has the room for, whatever else is in its line",
})

def datasets():
    raise AssertionError("not called")

def build(inputs, train_phase):
    raise AssertionError("not called")
"""


@pytest.fixture(autouse=True)
def _model(scratch: Path) -> None:
    (scratch / "listed.py").write_text(MODEL)
    forget_models()


def test_json(capsys: pytest.CaptureFixture[str], scratch: Path) -> None:
    (scratch / "first.json").write_text('{"model.batch_size": 8, "trainer.print_interval": 7}')
    (scratch / "more.yaml").write_text("model: {batch_size: 16}")
    arguments = ["-s", "model.units=[8]", "-c", "first.json", "-c", "more.yaml", "--json"]
    assert main(["config", "listed", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model.units"] == {"value": [8], "default": [64, 32], "type": "list", "required": False}
    assert found["trainer.print_interval"] == {"value": 7, "default": 100, "type": "interval", "required": False}
    assert found["model.batch_size"] == {"value": 16, "type": "int", "required": True}
    method = found["model.optimizer.method"]
    assert "adam" in method.pop("choices") and method == {"value": "sgd", "type": "optimizer", "required": False}
    assert found["model.jit_compile"]["also"] == ["loop", "auto"]
    assert found["trainer.keep_best"]["value"] is None
    assert "lambda" in found["model.weight_decay.filter_fn"]["value"]
    assert "model.optimizer.adam.beta1" not in found
    assert main(["config", "listed", "--all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model.optimizer.adam.beta1"]["default"] == 0.9


def test_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for columns, shortened in ((80, True), (240, False)):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(["config", "listed"]) == 0
        lines = [one_line(line) for line in capsys.readouterr().out.splitlines()]
        rows = {line.split()[0]: line for line in lines if line.split()}
        assert "model.trainable_variables.filter_regex" in rows and "required" in rows["model.batch_size"]
        assert ("the room for" in rows["model.words"]) is not shortened
        assert max(len(line.rstrip()) for line in lines[1:]) <= columns


def test_mistakes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model.batch_size: big")
    assert "a.yaml: model.batch_size: expected int" in fails(capsys, "config", "listed", "-c", tmp_path / "a.yaml")
    assert "trainer.print_interval'" in fails(capsys, "config", "listed", "-s", "trainer.print_intervall=7")
    assert "there is no model listen" in fails(capsys, "config", "listen")
