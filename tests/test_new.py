from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from prototrain import default_callbacks, load_model
from prototrain.cli import main
from tests.conftest import ROOT


def test_package_loads_and_is_formatted(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "models_of_mine.spirals"]) == 0
    package = scratch / "models_of_mine" / "spirals"
    written = sorted(path.name for path in package.iterdir())
    assert written == sorted(path.name for path in (ROOT / "prototrain" / "template").glob("*.py"))
    assert "train it  prototrain run models_of_mine.spirals" in capsys.readouterr().out
    assert not [path for path in package.iterdir() if "template" in path.read_text()]
    assert list(scratch.rglob(".tmp-*")) == []
    model = load_model("models_of_mine.spirals")
    assert model.config["trainer.experiment_name"] == "spirals"
    assert default_callbacks(model)[-1].name == "LargestWeight"


@pytest.mark.slow
def test_test_of_the_package_passes(scratch: Path) -> None:
    assert main(["new", "mine"]) == 0
    sys.path.insert(0, str(scratch))
    importlib.import_module("mine.test_model").test_it_learns()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my-model", "'my-model' is not a module name"),
        ("json", "there is a module json already"),
        ("taken", "taken is there already; choose another name or delete it first"),
        ("file.mine", "cannot write file/mine: "),
    ],
)
def test_errors_are_one_line(name: str, message: str, scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (scratch / "taken").mkdir()
    (scratch / "file").touch()
    before = sorted(scratch.rglob("*"))
    assert main(["new", name]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"prototrain: error: {message}") and error.count("\n") == 1
    assert sorted(scratch.rglob("*")) == before
