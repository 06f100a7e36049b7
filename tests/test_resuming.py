"""What may change between a stop and a resume: each row of the table in docs/resuming.md."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from prototrain import Callback, SimpleTrainer
from prototrain.callbacks import SaveOnExit
from prototrain.errors import CheckpointError
from tests.conftest import ROOT
from tests.tiny import tiny_arrays, tiny_build, tiny_model, values

STOP, END = 7, 12


def datasets(*, examples: int = 40, buffer: int = 40, factor: float = 1.0, batch: int = 8) -> Callable[[], Any]:
    def make() -> dict[str, tf.data.Dataset]:
        trn = tf.data.Dataset.from_tensor_slices(tiny_arrays(examples)).shuffle(buffer)
        return {"trn": trn.map(lambda example: {**example, "x": example["x"] * factor}).batch(batch)}

    return make


def with_layer(*, units: int = 6, name: str = "fc0") -> Callable[[Any, bool], Any]:
    def build(inputs: Any, train_phase: bool) -> Any:
        hidden = keras.layers.Dense(units, activation="relu", name=name)(inputs["x"])
        logits = keras.layers.Dense(2, name="logits")(hidden)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=inputs["y"], logits=logits)
        return {"loss": tf.reduce_mean(losses)}

    return build


class Counts(Callback):
    """Has a state of its own."""

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

# What changes -> "exact", or the words that say that the resume is not exact, or the words of the refusal.
EXACT = {
    "nothing": {},
    "the number of steps": {"model__num_steps": 500},
    "intervals and where the run prints": {"trainer__print_interval": 7, "trainer__max_checkpoints_to_keep": 2},
    "keys of actions": {"actions__export__outputs": ["logits"]},
}
INEXACT = {
    "a config key": ({"model__lr_schedule__constant__value": 0.02}, "config model.lr_schedule.constant.value was 0.01"),
    "a key of the model's own": ({"model__mine": 3}, "config model.mine was not set and is 3"),
    "weight decay": ({"model__weight_decay__value": 0.1}, "config model.weight_decay.value was not set and is 0.1"),
}
REFUSED = {
    "the batch size": (
        {"datasets": datasets(batch=4)},
        r"training data has changed: .*Batch\(8, .*--allow-changed-data",
    ),
    "the dataset's length": (
        {"datasets": datasets(examples=48)},
        "batches per pass was 5 and is 6.*--allow-changed-data",
    ),
    "the shuffle buffer": (
        {"datasets": datasets(buffer=20)},
        r"Shuffle\(40, .* has become Shuffle\(20.*--allow-changed",
    ),
    "a transformation": ({"datasets": datasets(factor=2.0)}, r"Map\(function .* has become.*--allow-changed-data"),
    "the random seed": ({"trainer__random_seed": 5}, "seed was 1337 and is 5.*--allow-changed-data"),
    "a layer's size": ({"build": with_layer(units=7)}, "fc0/kernel is .*4, ?6.* there and .*4, ?7.* here.*--fresh"),
    "a layer's name": ({"build": with_layer(name="fc9")}, "fc0/bias is no longer in the model.*--fresh"),
    "the optimizer": ({"model__optimizer__method": "rmsprop"}, "optimizer/.* is n.*--fresh"),
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
    """A run that was stopped, which a test may go on with."""
    return Path(shutil.copytree(once_stopped, tmp_path / "tiny"))


def test_accepted_and_exact(stopped: Path, straight: dict[str, bytes]) -> None:
    trainer = train(stopped, END, **{key: value for change in EXACT.values() for key, value in change.items()})
    assert trainer.storage.resume_line() == f"resumed at step {STOP}, exact"
    assert values(trainer) == straight


def test_accepted_and_said_to_be_inexact(stopped: Path) -> None:
    changes = {key: value for change, _ in INEXACT.values() for key, value in change.items()}
    line = train(stopped, END, **changes).storage.resume_line()
    assert line.startswith(f"resumed at step {STOP}, not bit-exact, because")
    assert [words for _, words in INEXACT.values() if words not in line] == []


def test_refused_and_nothing_is_lost(stopped: Path, straight: dict[str, bytes]) -> None:
    for name, (change, words) in REFUSED.items():
        with pytest.raises(CheckpointError, match=words) as caught:
            train(stopped, END, **change)
        assert "\n" not in str(caught.value), name
    trainer = train(stopped, END)
    assert trainer.storage.resume_line() == f"resumed at step {STOP}, exact"
    assert values(trainer) == straight


def test_changed_data_can_be_allowed(stopped: Path) -> None:
    trainer = SimpleTrainer(tiny_model(**{**BASE, "datasets": datasets(batch=4, buffer=20)}), experiment=stopped)
    trainer.train([SaveOnExit()], max_steps=END, steps_per_epoch=5, allow_changed_data=True)
    assert trainer.global_step == END and not trainer.data.allow_changes
    assert "not bit-exact, because the training data has changed" in trainer.storage.resume_line()


def test_another_environment_is_said_to_be_inexact(stopped: Path) -> None:
    changed = {
        "tensorflow": "2.99",
        "processor": "another",
        "processors": 64,
        "intra-op threads": 3,
        "python": "3.99",
        "numpy": "9.9",
    }

    class Elsewhere(SimpleTrainer):
        def provenance(self) -> dict[str, Any]:
            return {**super().provenance(), "trainer": "SimpleTrainer", **changed}

    trainer = Elsewhere(tiny_model(**BASE), experiment=stopped)
    trainer.train([SaveOnExit()], max_steps=END, steps_per_epoch=5)
    line = trainer.storage.resume_line()
    for key, value in changed.items():
        assert re.search(rf"not bit-exact, because .*{key} was .* and is {value}", line), line


def test_edited_code_is_said_to_be_inexact(tmp_path: Path) -> None:
    """Also if it was edited while it ran: that is not the code of the run."""
    source = tmp_path / "model.py"
    source.write_text("# one way\n")
    model = tiny_model(**BASE)
    model.source = source

    class Edits(Callback):
        def trigger_step(self) -> None:
            source.write_text("# another way\n")

    trainer = SimpleTrainer(model, experiment=tmp_path / "run")
    trainer.train([SaveOnExit(), Edits()], max_steps=STOP, steps_per_epoch=5)
    trainer = SimpleTrainer(model, experiment=tmp_path / "run")
    trainer.train([SaveOnExit()], max_steps=END, steps_per_epoch=5)
    assert "model code was" in trainer.storage.resume_line()


def test_callbacks_that_are_new_or_gone_are_named(tmp_path: Path) -> None:
    train(tmp_path, STOP, Counts("kept"), Counts("gone"))
    kept, new = Counts("kept"), Counts("new")
    line = train(tmp_path, END, kept, new).storage.resume_line()
    assert "new starts without a saved state" in line and "the saved state of gone is not used" in line
    assert (kept.count, new.count) == (END, END - STOP)


def test_the_table_in_the_documentation_has_these_rows() -> None:
    text = (ROOT / "docs" / "resuming.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")}
    assert {*EXACT, *INEXACT, *REFUSED} - {"nothing"} <= rows
