"""Arbitrary files and arguments: one clear line, no code is run, and no other file is touched."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from prototrain import Config
from prototrain.callbacks import EarlyStopping, JSONWriter, ModelSaver, SaveOnExit, StopAfter, Summaries
from prototrain.checkpoint.store import META, checksum, verify
from prototrain.checkpoint.weights import load_weights
from prototrain.config.schema import SCHEMA
from prototrain.errors import CheckpointError, PrototrainError
from tests.tiny import CountingTrainer, tiny_config

# The same few examples in every run, since each takes long on a slow machine.
FUZZ = settings(
    derandomize=True,
    deadline=None,
    max_examples=40,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
NUMBERS = st.integers() | st.floats() | st.sampled_from([2**70, -1, 10**400])
SCALARS = st.none() | st.booleans() | st.text(max_size=8) | NUMBERS
NASTY = st.sampled_from(
    [
        "../../x", "/etc/passwd", "..", ".", "", "\x00", "a/b", "os:system", "builtins:eval", "builtins:exit",
        "sys:exit", "subprocess:run",
        "__import__('os').abort()", "{timestamp}", "{0.__class__}", "%s", "NaN", "1e999", "\ud800",
    ]
)  # fmt: skip
JSON = st.recursive(
    SCALARS | NASTY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | NASTY, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def mutated(draw: st.DrawFn, value: Any) -> Any:
    """JSON data with one to three of its parts replaced, dropped or renamed."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        owner, last = None, None
        part = value
        # Every level of the data is chosen equally often.
        while isinstance(part, (dict, list)) and part and (owner is None or draw(st.integers(0, 4))):
            owner, last = part, draw(st.sampled_from(sorted(part) if isinstance(part, dict) else range(len(part))))
            part = owner[last]
        if owner is None:
            return value
        kind = draw(st.sampled_from(["replace", "drop", "rename"]))
        if kind == "replace":
            owner[last] = draw(JSON)
        elif kind == "drop" or isinstance(owner, list):
            del owner[last]
        else:
            owner[draw(st.text(max_size=4) | NASTY)] = owner.pop(last)
    return value


@st.composite
def corrupted(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes with some removed, changed or inserted."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 20)))
        content = content[:start] + draw(st.binary(max_size=20)) + content[end:]
    return content


def attempt(call: Callable[..., object], *arguments: Any) -> None:
    """Call a function that may only raise errors of prototrain with one line."""
    try:
        call(*arguments)
    except PrototrainError as error:
        if not str(error).strip() or "Traceback" in str(error):
            pytest.fail(f"not a clear line: {error!r}")


@pytest.fixture(autouse=True)
def nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test that evaluates code, imports a new module or starts a process."""
    for owner, name in ((os, "system"), (os, "abort"), (os, "fork"), (os, "popen")):
        monkeypatch.setattr(owner, name, lambda *a, name=name, **k: pytest.fail(f"{name} was called"))


# Configs


KEYS = st.sampled_from([*SCHEMA, "own.key", "model.optimzer.method", "trainer."]) | st.text(max_size=10) | NASTY


@FUZZ
@given(st.dictionaries(KEYS, JSON, max_size=4))
def test_configs(values: dict[str, Any]) -> None:
    def make() -> None:
        config = tiny_config()
        config.update(values)
        config.to_text()
        config.to_json()
        config.validate()

    attempt(make)


@FUZZ
@given(st.lists(st.builds("{}={}".format, KEYS, JSON.map(json.dumps) | st.text(max_size=10) | NASTY), max_size=3))
def test_overrides(texts: list[str]) -> None:
    config = tiny_config()
    before = config.to_json()
    try:
        config.override(texts)
    except PrototrainError:
        assert config.to_json() == before
    attempt(config.validate)


FULL = {
    "trainer.experiment_name": "fuzz",
    "model.batch_size": 8,
    "model.num_steps": 5,
    "model.trainable_variables.filter_fn": "builtins:bool",
    "model.lr_schedule.method": "step",
    "model.lr_schedule.step.boundaries": [1, 2],
    "model.lr_schedule.step.values": [0.1, 0.2, 0.3],
    "own": {"list": [1, 2.5, None], "fn": "os:system"},
    "prototrain.functions": ["own"],
}


@FUZZ
@given(mutated(FULL) | JSON)
def test_structure_of_config_json(tmp_path: Path, plain: Any) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(plain))
    attempt(lambda: Config().restore(path))
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


# Checkpoints


def callbacks() -> list[Any]:
    saver = ModelSaver().every(steps=2)
    return [
        Summaries().every(steps=1), JSONWriter(), EarlyStopping("trn/loss", mode="min", patience=9).every(steps=1),
        StopAfter(hours=9), saver, SaveOnExit(),
    ]  # fmt: skip


class Indifferent(CountingTrainer):
    """A trainer whose steps do not depend on its state."""

    def run_step(self) -> dict[str, float]:
        return {"loss": 0.5}


class Run:
    """A run with a checkpoint, next to files that no run may touch."""

    def __init__(self, base: Path) -> None:
        self.base, self.directory = base, base / "run"
        (base / "outside").write_text("not to be touched")
        self.train(4)
        self.path = self.directory / "checkpoints" / "step-0000000004"
        self.meta = json.loads((self.path / META).read_text())["meta"]
        self._kept = base.with_name("kept")
        shutil.copytree(self.directory, self._kept)

    def train(self, steps: int) -> None:
        CountingTrainer(experiment=self.directory).train(callbacks(), max_steps=steps)

    def put_back(self) -> None:
        shutil.rmtree(self.directory)
        shutil.copytree(self._kept, self.directory)

    def check_outside(self) -> None:
        assert sorted(path.name for path in self.base.iterdir()) == ["outside", "run"]
        assert (self.base / "outside").read_text() == "not to be touched"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    base = tmp_path_factory.mktemp("fuzz") / "base"
    base.mkdir()
    return Run(base)


def restore(run: Run) -> None:
    """Resume a run up to the end of its first step."""
    Indifferent(experiment=run.directory).train(callbacks(), max_steps=5)


@settings(FUZZ, max_examples=20)
@given(st.data())
def test_meta_json_with_a_correct_checksum(run: Run, data: st.DataObject) -> None:
    run.put_back()
    key = data.draw(st.sampled_from([*run.meta, "callbacks", "callbacks"]))
    meta = {**run.meta, key: data.draw(mutated({key: run.meta[key]})).get(key)}
    (run.path / META).write_text(json.dumps({"sha256": checksum(meta), "meta": meta}))
    attempt(restore, run)
    run.check_outside()


@settings(FUZZ, max_examples=16)
@given(st.data())
def test_bytes_of_files(run: Run, data: st.DataObject) -> None:
    run.put_back()
    file = data.draw(st.sampled_from([run.path / META, run.directory / "metrics.jsonl"]))
    file.write_bytes(data.draw(corrupted(file.read_bytes())))
    attempt(restore, run)
    run.check_outside()


@pytest.mark.parametrize("suffix", ["index", "data-00000-of-00001"])
def test_bytes_of_weights(tmp_path: Path, suffix: str) -> None:
    variables = {"a/kernel": tf.Variable(np.ones((3, 4), np.float32)), "b": tf.Variable([1, 2])}
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "model"),
        tensor_names=list(variables),
        shape_and_slices=["", ""],
        tensors=[variable.read_value() for variable in variables.values()],
    )
    file = tmp_path / f"model.{suffix}"
    content, chance = file.read_bytes(), random.Random(1)
    for _ in range(40):
        broken = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        file.write_bytes(broken[: chance.choice([len(broken), chance.randrange(len(broken))])])
        attempt(load_weights, variables, tmp_path / "model")


def test_graph_in_a_data_position_is_refused(tmp_path: Path) -> None:
    """A buffer of datasets is saved as graphs, and a restore would run any graph."""
    dataset = tf.data.Dataset.range(50).window(5).shuffle(4, seed=1).flat_map(lambda window: window.batch(5))
    position = iter(dataset)
    next(position)
    trainer = CountingTrainer(experiment=tmp_path)
    trainer.state["data"] = position
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prototrain.checkpoint.store._holds_graph", lambda path: False)  # a save also refuses it
        trainer.train([SaveOnExit()], max_steps=1)
    with pytest.raises(CheckpointError, match="holds a TensorFlow graph, which a restore would run"):
        verify(tmp_path / "checkpoints" / "step-0000000001")
