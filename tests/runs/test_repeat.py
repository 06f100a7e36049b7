"""`prototrain run --from EXPERIMENT` repeats a run exactly."""

from __future__ import annotations

import importlib
import inspect
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prototrain.checkpoint.store import verify
from prototrain.cli import main
from prototrain.experiment import home_of, source_of
from prototrain.runs.copies import imported_from_copies
from tests.conftest import forget_models
from tests.tiny import rows

CONFIG = """
from prototrain import Config

config = Config({
    "trainer.experiment_name": "first",
    "trainer.summary_save_interval": 2,
    "trainer.validation_step_interval": 3,
    "model.batch_size": 4,
    "model.num_steps": 4,
    "model.units": 3,
    "model.optimizer.method": "sgd",
    "model.lr_schedule.method": "custom",
    "model.lr_schedule.custom.fn": lambda step: 0.1 * 0.9 ** (step / 2),
})
"""
DATASETS = """
from pathlib import Path
import numpy as np
import tensorflow as tf
from .config import config

def datasets():
    x = np.loadtxt(Path(__file__).parent / "x.csv", delimiter=",", dtype=np.float32)
    data = tf.data.Dataset.from_tensor_slices({"x": x[:, :3], "y": x[:, 3:]})
    return {"trn": data.shuffle(20).batch(config["model.batch_size"]), "vld": data.batch(8)}
"""
DEFINITION = """
import keras
import tensorflow as tf
from helping_repeat import factor
from .config import config

def build(inputs, train_phase):
    hidden = keras.layers.Dense(config["model.units"], activation="relu", name="hidden")(inputs["x"])
    hidden = keras.layers.Dropout(0.2, name="dropout")(hidden, training=train_phase)
    out = keras.layers.Dense(1, name="out")(hidden) * factor
    return {"loss": tf.reduce_mean((out - inputs["y"]) ** 2)}
"""
TRAINER = """
from prototrain import SyncReplicatedTrainer

class Mine(SyncReplicatedTrainer):
    pass
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model package and its run "first", which has its own settings."""
    place = tmp_path_factory.mktemp("original")
    package = place / "outer" / "net_of_repeat"
    package.mkdir(parents=True)
    for name, text in {"config": CONFIG, "datasets": DATASETS, "definition": DEFINITION}.items():
        (package / f"{name}.py").write_text(text)
    (package / "__init__.py").write_text("")
    (package / "x.csv").write_text("\n".join(f"{i},{i % 3},1,{i % 2}" for i in range(20)))
    (place / "trainer_of_repeat.py").write_text(TRAINER)
    (place / "helping_repeat.py").write_text("factor = 1.0\n")
    changed = ["-s", "model.num_steps=7", "-s", "model.units=5"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(sys, "path", list(sys.path))
        command = ["run", "outer.net_of_repeat", "--trainer", "trainer_of_repeat:Mine", "--towers", "cpu:2", *changed]
        assert main(command) == 0
        forget_models()
    return place


@pytest.fixture
def place(original: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A copy of this directory as the working directory; its modules are forgotten afterwards."""
    shutil.copytree(original, scratch / "here")
    shutil.rmtree(scratch / "here" / "outer")  # the run still has the original directory
    for directory in (original, scratch / "here"):
        monkeypatch.chdir(directory)
        forget_models()
    yield
    forget_models()


def variables(experiment: str) -> dict[str, bytes]:
    saved = verify(Path(experiment, "checkpoints/step-0000000007")).variables()
    return {name: value.tobytes() for name, value in saved.items()}


def test_repeated_run_is_exact(place: None, original: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also restores the settings, trainer and towers; a repeat can be repeated."""
    assert main(["run", "--from", "experiments/first"]) == 0
    assert main(["run", "--from", "experiments/first-repeat/", "-s", "trainer.experiment_name=third"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("trainer        Mine") == 2 and printed.count("2 towers x 2") == 2
    # Data in another directory counts as the same; another working directory is reported.
    assert f"differs in  directory {original} -> " in printed.replace("\n            ", " ")
    assert "repeats     experiments/first-repeat\ndiffers in  nothing that is known\n" in printed
    assert "metrics compared with experiments/first: steps 1 to 7 repeated with the same values" in printed
    for repeated in ("experiments/first-repeat", "experiments/third"):
        assert variables(repeated) == variables("experiments/first")
        assert rows(repeated) == rows("experiments/first") != []
    source = Path("experiments/third/source")
    assert {str(path.relative_to(source)) for path in source.rglob("*.*")} == {
        *(f"net_of_repeat/{name}.py" for name in ("__init__", "config", "datasets", "definition")),
        "trainer_of_repeat.py",
    }
    assert not list(Path("experiments/first").rglob("*.pyc"))


def test_shorter_run_is_compared_by_common_scalars(place: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Its last step has a validation, which the longer run has not."""
    assert main(["run", "--from", "experiments/first", "--steps", "4"]) == 0
    assert "vld/loss" in rows("experiments/first-repeat")[-1]
    assert "experiments/first: steps 1 to 4 repeated with the same values" in capsys.readouterr().out
    assert main(["run", "--from", "experiments/first", "--steps", "4", "-s", "model.units=6"]) == 1
    assert "has begun with another model.units" in capsys.readouterr().err
    assert main(["run", "--from", "experiments/first", "--steps", "4", "-s", "model.units=6", "--fresh", "--yes"]) == 0


def test_differences_are_printed(place: None, original: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Differences of code, data, versions and settings."""
    environment = Path("experiments/first/environment.json")
    content = json.loads(environment.read_text())
    content["versions"]["prototrain"] = "0.0"
    content["callbacks"].append("Mine")
    content["modules"]["outer.net_of_repeat"] = "/gone/net_of_repeat"
    environment.write_text(json.dumps(content))
    shutil.copytree(original / "outer", "outer")
    for file, more in {"x.csv": "\n1,1,1,1", "definition.py": "\nraise SystemExit\n"}.items():
        with open(f"outer/net_of_repeat/{file}", "a") as opened:
            opened.write(more)
    Path("helping_repeat.py").write_text("factor = 2.0\n")
    options = ["--towers", "cpu:1", "-s", "model.units=5", "-s", "trainer.print_interval=3", "--limit-batches", "4"]
    assert main(["run", "--from", "experiments/first", *options]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for words in (
        "prototrain 0.0 -> ",
        "towers 2 -> 1",
        "config trainer.print_interval was 100 and is 3",
        "config trainer.limit_batches was None and is 4",
        "the pipeline's stage TensorSlice(float32[20,3]",
        "callback Mine gone",
        "metrics compared with experiments/first: step 2 was repeated with a different trn/loss",
    ):
        assert words in printed, words


def test_run_is_not_repeated_into_itself(place: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--from", "experiments/first", "-s", "trainer.experiment_name=first"]) == 1
    assert "cannot be repeated into itself" in capsys.readouterr().err
    assert [path.name for path in Path("experiments").iterdir()] == ["first"]


@pytest.fixture
def versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a package and a module, and copies of earlier versions of both."""
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "outer_of_snapshot" / "package"
    (package / "sub").mkdir(parents=True)
    (package / "__init__.py").write_text("from .part import value as value\n")
    (package / "part.py").write_text("import sys\nvalue = 'then'\ndef where():\n    return __file__\n")
    (package / "sub" / "__init__.py").write_text("value = 'sub then'\n")
    (tmp_path / "single_of_snapshot.py").write_text("value = 'single then'\n")
    copies = tmp_path / "copies"
    shutil.copytree(package, copies / "package")
    shutil.copy(tmp_path / "single_of_snapshot.py", copies)
    for file in [*package.rglob("*.py"), tmp_path / "single_of_snapshot.py"]:
        file.write_text(file.read_text().replace("then", "now"))
    yield tmp_path
    for name in [name for name in sys.modules if "_of_snapshot" in name]:
        del sys.modules[name]


def test_import_and_forget_copies(versions: Path) -> None:
    package, single = versions / "outer_of_snapshot/package", versions / "single_of_snapshot.py"
    name = "outer_of_snapshot.package"
    assert importlib.import_module(name).value == "now"
    with imported_from_copies(
        {
            name: (package, versions / "copies/package"),
            "single_of_snapshot": (single, versions / "copies" / single.name),
        }
    ):
        found = importlib.import_module(name)
        assert found.value == "then" and importlib.import_module(f"{name}.sub").value == "sub then"
        assert importlib.import_module("single_of_snapshot").value == "single then"
        part = importlib.import_module(f"{name}.part")
        assert part.where() == str(package / "part.py")
        assert "'then'" in inspect.getsource(part) or "def where" in inspect.getsource(part.where)
        assert inspect.getsourcefile(part.where) == str(versions / "copies/package/part.py")
        assert source_of(found) == versions / "copies/package" and home_of(found) == package
        assert source_of(part) == versions / "copies/package/part.py" and home_of(part) == package / "part.py"
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"{name}.nothing")
    assert importlib.import_module(name).value == "now"
    assert not list((versions / "copies").rglob("*.pyc"))


def test_missing_neighbors_of_a_copy(versions: Path) -> None:
    package = versions / "outer_of_snapshot/package"
    shutil.rmtree(versions / "outer_of_snapshot")
    with imported_from_copies({"outer_of_snapshot.package": (package, versions / "copies/package")}):
        assert importlib.import_module("outer_of_snapshot.package.part").value == "then"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("outer_of_snapshot.package")
