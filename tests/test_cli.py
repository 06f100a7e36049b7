"""The command line with real models in a scratch directory: output, exit codes and files."""

from __future__ import annotations

import importlib
import io
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from prototrain import default_callbacks, load_model
from prototrain.callbacks import SaveOnExit, ScalarPrinter
from prototrain.cli import main
from prototrain.errors import ModelError
from tests.conftest import ROOT
from tests.made import make, part
from tests.tiny import fails, rows, tiny_trainer

MODEL = """
import keras, tensorflow as tf
from prototrain import Config, ModelDict

config = Config({
    "trainer.experiment_name": "e",
    "model.batch_size": 4,
    "model.num_steps": 4,
    "model.optimizer.method": "sgd",
    "model.lr_schedule.method": "constant",
    "model.lr_schedule.constant.value": 0.1,
})

def datasets():
    data = tf.data.Dataset.from_tensor_slices({"x": tf.ones([16, 3]), "y": tf.ones([16])}).batch(4)
    return {"trn": data, "vld": data}

def build(inputs, train_phase):
    net = ModelDict(x=inputs["x"])
    net.out = keras.layers.Dense(1, name="out")(net.x)
    net.loss = tf.reduce_mean((net.out[:, 0] - inputs["y"]) ** 2)
    return net
"""


@pytest.fixture(autouse=True)
def _model(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with a model `m`."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    (scratch / "m.py").write_text(MODEL)


def change(old: str, new: str) -> None:
    assert old in MODEL
    Path("m.py").write_text(MODEL.replace(old, new))


def test_run_and_rerun(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "m"]) == 0
    first = capfd.readouterr().out
    assert "tensorboard --logdir experiments/e/summaries" in first
    # On a busy machine there may also be a longer line about the input.
    assert max(len(line) for line in first.splitlines() if not line.startswith("the steps spent")) <= 80
    assert main(["run", "m", "-s", "model.num_steps=6"]) == 0
    assert "resumed at step 4; data: " in capfd.readouterr().out
    assert main(["run", "m", "--fresh", "--yes", "--trainer", "m:datasets"]) == 1
    assert Path("experiments/e/checkpoints/step-0000000006").is_dir()


def test_closed_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        patch.setattr(sys, "stdin", None)
        assert main(["run", "m"]) == 0 and main(["runs"]) == 0
        sys.stdout.close()  # what main() has opened
        patch.setattr(sys, "stdout", None)  # in a script
        trainer = tiny_trainer(Path("experiments/tiny"))
        trainer.train([ScalarPrinter().every(steps=1), SaveOnExit()], max_steps=2)
    assert "step" in Path("experiments/tiny/train.log").read_text()


def test_steps_and_epochs_options(capfd: pytest.CaptureFixture[str]) -> None:
    for length, said in (
        (["--epochs", "2"], "2 of 4 steps"),
        (["--steps", "9"], "resumed at step 8"),
        (["--steps", "9"], "nothing to do: step 9 of 9 is done; raise model.num_steps or use --fresh"),
        (["--epochs", "2", "-s", "trainer.print_interval=1 epoch", "--fresh", "--yes"], "2 of 4 steps"),
    ):
        main(["run", "m", *length])
        captured = capfd.readouterr()
        assert said in captured.out and "?" not in captured.err and "ScalarPrinter" not in captured.out
    assert len(re.findall(r"^ +\d+ +\d+ .* trn ", captured.out, re.MULTILINE)) == 2  # a line for each epoch
    for wrong in (["--epochs", "0"], ["--epochs", "2", "--steps", "3"], ["--fres", "--yes"]):
        with pytest.raises(SystemExit, match="2"):
            main(["run", "m", *wrong])


def test_fast_dev_run_and_unused_values(capfd: pytest.CaptureFixture[str]) -> None:
    Path("c.json").write_text('{"model.optimizer.adam.beta1": 0.5}')
    assert main(["run", "m", "--fast-dev-run", "-c", "c.json", "--trainer", "simple", "--overfit-batches", "1"]) == 0
    said = capfd.readouterr().out
    assert "WARNING: model.optimizer.adam.beta1 has no effect: model.optimizer.method is 'sgd'" in said
    assert "step 2 of 2" in said and said.endswith("fast dev run: completed; its directory is deleted\n")
    assert not Path("experiments").exists()
    for more in (["--fresh"], ["--steps", "7"], ["-s", "model.num_steps=7"], ["--limit-batches", "1"]):
        with pytest.raises(SystemExit, match="2"):
            main(["run", "m", "--fast-dev-run", *more])


@pytest.mark.parametrize(
    ("arguments", "edit", "message"),
    [
        (["-s", "trainer.print_intervall=3"], None, "intervall'; did you mean 'trainer.print_interval'"),
        (["-s", "model.trainable_variables.filter_regex=x"], None, "'x' accepts none of the variables out/kernel"),
        (["-s", "trainer.experiment_base_dir=/proc/none"], None, "cannot use the experiment directory /proc/none/e"),
        (["-s", "trainer.experiment_base_dir="], None, "trainer.experiment_base_dir: '' is empty"),
        (["--debug"], None, "--debug opens a shell, and there is no terminal"),
        ([], ('"vld": data}', '"vld": data.map(lambda b: b["x"])}'), "must be a dict of batched"),
        ([], ('inputs["x"]', 'inputs["images"]'), "KeyError in build() (m.py, line 19): 'images'; a batch has: x, y"),
        ([], (".batch(4)", ".batch(20, drop_remainder=True)"), "drop_remainder=True"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], edit: tuple[str, str] | None, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if edit is not None:
        change(*edit)
    assert message in fails(capfd, "run", "m", *arguments)
    assert not Path("experiments").exists()


def test_user_error_keeps_its_frames(capfd: pytest.CaptureFixture[str]) -> None:
    change('"constant"', '"custom", "model.lr_schedule.custom.fn": lambda step: 1 / 0')
    assert main(["run", "m"]) == 1
    lines = capfd.readouterr().err.splitlines()
    frames = [line for line in lines if line.startswith("  File ")]
    assert len(frames) == 1 and frames[0].endswith(", in <lambda>") and "m.py" in frames[0]
    assert lines[0].startswith("Traceback") and lines[-1] == "ZeroDivisionError: division by zero"
    assert not Path("experiments").exists()


def test_network_made_at_import_has_the_same_initial_values() -> None:
    change("def datasets", "layer = keras.layers.Dense(1)\nlayer.build((None, 3))\n\ndef datasets")
    Path("m.py").write_text(Path("m.py").read_text().replace('keras.layers.Dense(1, name="out")', "layer"))
    losses = []
    for seed, name in ((1, "a"), (1, "b"), (2, "c")):
        arguments = ["-s", f"trainer.random_seed={seed}", "-s", f"trainer.experiment_name={name}"]
        assert main(["run", "m", "-s", "trainer.summary_save_interval=1", *arguments]) == 0
        del sys.modules["m"]
        losses.append([row["trn/loss"] for row in rows(f"experiments/{name}")])
    assert losses[0] == losses[1] != losses[2]


def test_fresh_start_asks_at_a_terminal(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["run", "m", "--fresh"]) == 0  # there is nothing to delete
    assert "no terminal to answer at; add --yes" in fails(capfd, "run", "m", "--fresh")
    for answer, code in {"n\n": 1, "": 1, "y\n": 0}.items():
        monkeypatch.setattr(sys, "stdin", terminal := io.StringIO(answer))
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        assert main(["run", "m", "--fresh", "-s", "model.num_steps=2"]) == code, answer
        assert Path("experiments/e/checkpoints/step-0000000004").is_dir() == (code == 1), answer
    assert main(["run", "m", "--fresh", "--yes"]) == 0


def test_trainer_option(capfd: pytest.CaptureFixture[str]) -> None:
    Path("t.py").write_text("from prototrain import SimpleTrainer\nclass Mine(SimpleTrainer):\n    pass\n")
    assert "--trainer: module t has no Other" in fails(capfd, "run", "m", "--trainer", "t:Other")
    assert main(["run", "m", "--trainer", "t:Mine"]) == 0
    assert re.search(r"^trainer +Mine$", capfd.readouterr().out, re.MULTILINE)
    assert Path("experiments/e/source/t.py").is_file() and Path("experiments/e/source/m.py").is_file()


USAGE = {
    "": "required: COMMAND",
    "trian m": "invalid choice: 'trian'",
    "run m --frehs": "did you mean '--fresh'",
    "run m --batch-size 3": "config keys are set with -s KEY=VALUE",
    "run m --trainer replicate": "did you mean 'replicated'",
    "run m --epochs 2 -s model.num_steps=3": "--epochs and -s both set the length",
    "sweep m --grid model.batch_size=4,8 -s model.batch_size=2": "model.batch_size is set by -s and varied",
    "run m --workers 0": "'0' is not a whole number of at least 1",
    "run m --workers 2 --min-workers 3": "--min-workers 3 is more than --workers 2",
}


@pytest.mark.parametrize("line", USAGE)
def test_wrong_usage_exits_with_2(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(line.split())
    said = capfd.readouterr().err
    assert exit_.value.code == 2 and USAGE[line] in said
    assert said.startswith("prototrain: error: ") and said.count("\n") == 1 and "--help)" in said


def test_script_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("script.py").write_text("from prototrain import SimpleTrainer\n\nSimpleTrainer('m')\n")
    with pytest.raises(ModelError) as failed:
        runpy.run_path("script.py")
    sys.excepthook(failed.type, failed.value, failed.tb)
    said = capsys.readouterr().err
    assert said.startswith("prototrain: error: ") and said.endswith(" (script.py, line 3)\n")
    assert "load_model('m')" in said and said.count("\n") == 1


def test_interrupt_exits_with_130() -> None:
    change("def build", "import signal\nsignal.raise_signal(signal.SIGINT)\ndef build")
    assert main(["run", "m"]) == 130
    assert not Path("experiments").exists()


def test_output_that_is_no_longer_read(tmp_path: Path) -> None:
    make(tmp_path / "run", part())
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "prototrain.cli", "runs", str(tmp_path)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


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
def test_new_package_is_refused(name: str, message: str, scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (scratch / "taken").mkdir()
    (scratch / "file").touch()
    before = sorted(scratch.rglob("*"))
    assert fails(capsys, "new", name).startswith(f"prototrain: error: {message}")
    assert sorted(scratch.rglob("*")) == before
