"""Changes between a stop and a resume: each row of the table in docs/resuming.md."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from prototrain import Callback, SimpleTrainer, Trainer
from prototrain.callbacks import CallbackFactory, SaveOnExit
from prototrain.errors import CheckpointError, ConfigError, PrototrainError
from tests.tiny import classifier, failing, tiny_arrays, tiny_build, tiny_model, values

STOP, END = 7, 12


def datasets(*, examples: int = 40, buffer: int = 40, factor: float = 1.0, batch: int = 8) -> Callable[[], Any]:
    def make() -> dict[str, tf.data.Dataset]:
        trn = tf.data.Dataset.from_tensor_slices(tiny_arrays(examples)).shuffle(buffer)
        return {"trn": trn.map(lambda example: {**example, "x": example["x"] * factor}).batch(batch)}

    return make


def with_layer(*, units: int = 6, name: str = "fc0") -> Callable[[Any, bool], Any]:
    def network(x: Any, train_phase: bool) -> Any:
        return keras.layers.Dense(2, name="logits")(keras.layers.Dense(units, activation="relu", name=name)(x))

    return classifier(network)


class Counts(Callback):
    """Has `state_dict` and `load_state_dict`."""

    def __init__(self, key: str = "Counts") -> None:
        self.state_key = key
        self.count = 0

    def trigger_step(self) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


BASE: dict[str, Any] = {"datasets": datasets(), "build": with_layer()}

# Change -> text in the line "start".
UNSAID: dict[str, dict[str, Any]] = {
    "nothing": {},
    "the number of steps": {"model__num_steps": 500},
    "keys of actions": {"actions__export__outputs": ["logits"]},
}
SAID: dict[str, tuple[dict[str, Any], str]] = {
    "where the run prints": ({"trainer__print_interval": 7}, " -> 7"),
    "a config key": ({"model__lr_schedule__constant__value": 0.02}, "model.lr_schedule.constant.value 0.01 -> 0.02"),
    "a key of the model's own": ({"model__mine": 3}, "model.mine null -> 3"),
    "weight decay": ({"model__weight_decay__value": 0.1}, "model.weight_decay.value null -> 0.1"),
    "a transformation": ({"datasets": datasets(factor=2.0)}, "its first batch is another one"),
}
REFUSED = {
    "the batch size": ({"datasets": datasets(batch=4), "model__batch_size": 4}, r"Batch\(8, .*--allow-changed-data"),
    "the dataset's length": ({"datasets": datasets(examples=48)}, "pass was 5 and is 6.*--allow-changed-data"),
    "the shuffle buffer": ({"datasets": datasets(buffer=20)}, r"Shuffle\(40, .* Shuffle\(20.*--allow-changed"),
    "the random seed": ({"trainer__random_seed": 5}, "seed was 1337 and is 5.*--allow-changed-data"),
    "a layer's size": (
        {"build": with_layer(units=7)},
        "fc0/kernel is .*4, ?6.* in the checkpoint and .*4, ?7.*--fresh",
    ),
    "a layer's name": ({"build": with_layer(name="fc9")}, "fc0/bias is no longer in the model.*--fresh"),
    "the optimizer": ({"model__optimizer__method": "rmsprop"}, "state of the optimizer Adam.*--fresh"),
    "the architecture": ({"build": tiny_build}, "bn0/beta is new in the model.*--fresh"),
}


def train(directory: Path, steps: int, *callbacks: Callback, **change: Any) -> SimpleTrainer:
    trainer = SimpleTrainer(tiny_model(**{**BASE, **change}), experiment=directory)
    trainer.train([*callbacks, SaveOnExit()], max_steps=steps, steps_per_epoch=5)
    return trainer


@pytest.fixture(scope="module")
def straight() -> dict[str, bytes]:
    trainer = SimpleTrainer(tiny_model(**BASE))
    trainer.train(max_steps=END, steps_per_epoch=5)
    return values(trainer)


@pytest.fixture(scope="module")
def once_stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stopped") / "tiny"
    train(directory, STOP)
    return directory


@pytest.fixture
def stopped(once_stopped: Path, tmp_path: Path) -> Path:
    """A stopped run, for a test to continue."""
    return Path(shutil.copytree(once_stopped, tmp_path / "tiny"))


def test_accepted_changes(stopped: Path, straight: dict[str, bytes]) -> None:
    trainer = train(stopped, END, **{key: value for change in UNSAID.values() for key, value in change.items()})
    assert trainer.run.start_row() == f"resumed at step {STOP}; data: {trainer.data.mode}"
    assert values(trainer) == straight


def test_changes_are_named_with_both_values(stopped: Path) -> None:
    changes = {key: value for change, _ in SAID.values() for key, value in change.items()}
    line = train(stopped, END, **changes).run.start_row()
    assert line.startswith(f"resumed at step {STOP}; data: ") and "; changed: " in line
    assert [words for _, words in SAID.values() if words not in line] == []


def test_refused_changes_lose_nothing(stopped: Path, straight: dict[str, bytes]) -> None:
    before = contents(stopped)
    for name, (change, words) in REFUSED.items():
        with pytest.raises(CheckpointError, match=words) as caught:
            train(stopped, END, **change)
        assert "\n" not in str(caught.value), name
        assert contents(stopped) == before, name
    trainer = train(stopped, END)
    assert trainer.run.start_row().startswith(f"resumed at step {STOP}") and values(trainer) == straight


def contents(directory: Path) -> dict[str, bytes]:
    """Return the content of every file below a directory, by relative path."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    ("callbacks", "damage"),
    [
        ([failing("setup", 0, ConfigError("a mistake"))], None),
        ([Counts("one"), Counts("one")], None),
        ([], "meta.json"),
    ],
    ids=["an error in setup", "two callbacks of one name", "a damaged checkpoint"],
)
def test_refused_run_changes_no_file(stopped: Path, callbacks: list[Callback], damage: str | None) -> None:
    if damage is not None:
        for path in (stopped / "checkpoints").glob(f"*/{damage}"):
            path.write_text("{")
    before = contents(stopped)
    with pytest.raises(PrototrainError):
        train(stopped, END, *callbacks, trainer__print_interval=7)
    assert contents(stopped) == before


def test_early_lines_are_in_the_log(stopped: Path) -> None:
    train(stopped, END, CallbackFactory(setup=lambda self: self.trainer.log("said in setup")))
    assert "said in setup" in (stopped / "train.log").read_text()


def test_changed_data_can_be_allowed(stopped: Path) -> None:
    changed = {"datasets": datasets(batch=4, buffer=20), "model__batch_size": 4}
    trainer = SimpleTrainer(tiny_model(**{**BASE, **changed}), experiment=stopped)
    trainer.train([SaveOnExit()], max_steps=END, steps_per_epoch=5, allow_changed_data=True)
    assert trainer.global_step == END
    assert "the training data has changed" in trainer.run.start_row()


def test_other_changed_facts_are_named(tmp_path: Path) -> None:
    class Elsewhere(SimpleTrainer):
        def _facts(self) -> dict[str, Any]:
            found = super()._facts()
            return {**found, "versions": {**found["versions"], "numpy": "9.9"}, "towers": 2}

    model, source, kept, new = tiny_model(**BASE), tmp_path / "definition.py", Counts("kept"), Counts("new")
    model.source = source
    source.write_text("# one way\n")
    before = SimpleTrainer(model, experiment=tmp_path / "run")
    before.train([Counts("kept"), Counts("gone"), SaveOnExit()], max_steps=STOP, steps_per_epoch=5)
    source.write_text("# another way\n")
    trainer = Elsewhere(model, experiment=tmp_path / "run")
    trainer.train([kept, new, SaveOnExit()], max_steps=END, steps_per_epoch=5)
    line = trainer.run.start_row()
    for words in (
        *(r"numpy \S+ -> 9\.9", "towers 1 -> 2", "trainer SimpleTrainer -> Elsewhere"),
        *("definition.py", "callback new added", "callback gone gone"),
    ):
        assert re.search(words, line), line
    assert (kept.count, new.count) == (END, END - STOP)


class MakesLate(Trainer):
    """A trainer whose first step creates a variable."""

    def run_step(self) -> dict[str, float]:
        self.state.setdefault("late", tf.Variable(1.0))
        return {"x": 1.0}


def test_warning_for_a_variable_made_in_run_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    MakesLate(experiment=tmp_path).train([SaveOnExit()], max_steps=2)
    words = "added to trainer.state after the start of the run: late"
    assert f"WARNING: {words}" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match="late"):
        MakesLate(experiment=tmp_path).train([SaveOnExit()], max_steps=4)
