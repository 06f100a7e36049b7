"""Tests of what a configuration is written as, and of what can be read back."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prototrain.config import FUNCTIONS_KEY, Config
from prototrain.errors import ConfigError


def keep_all(variable: object) -> bool:
    return True


class Maker:
    @classmethod
    def make(cls) -> str:
        return "made"

    @staticmethod
    def keep(variable: object) -> bool:
        return False

    def bound(self) -> None: ...


class Described:
    """Like a Keras object: a class and a config."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def get_config(self) -> dict[str, Any]:
        return {"rate": np.float32(self.rate), "name": "described", "fn": keep_all}


REQUIRED = {"trainer.experiment_name": "mine", "model.batch_size": 32, "model.num_steps": 100}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


FUNCTIONS = st.sampled_from([keep_all, Maker, Maker.make, Maker.keep, len, math.sqrt, np.mean])


VALUE_OR_FUNCTION = JSON | FUNCTIONS | st.lists(FUNCTIONS | st.just(f"{__name__}:keep_all"), max_size=3)


@settings(max_examples=40)
@given(JSON)
def test_any_json_value_overrides(value: Any) -> None:
    config = Config({"own": None})
    config.override(f"own={json.dumps(value)}")
    # JSON has no infinities; json.dumps writes them nevertheless.
    assert json.dumps(config["own"]) == json.dumps(value) or "Infinity" in json.dumps(value)


@settings(max_examples=40)
@given(st.dictionaries(st.from_regex(r"own\.[a-z]{1,3}(\.[a-z]{1,3})?", fullmatch=True), VALUE_OR_FUNCTION, max_size=5))
def test_a_config_reads_back(tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]) -> None:
    directory = tmp_path_factory.mktemp("config")
    config = Config({**REQUIRED, **values})
    config.save(directory)
    read = Config.load(directory / "config.json")
    assert read == config
    assert list(read) == list(config)
    assert read.to_json() == config.to_json()
    assert config.differences(read) == []


def load_text(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "config.json"
    path.write_text(text)
    return Config.load(path)


def test_functions_in_schema_keys_read_back(tmp_path: Path) -> None:
    config = Config({"model.optimizer.method": Maker.make, "model.trainable_variables.filter_fn": keep_all})
    assert config.to_plain() == {
        "model.optimizer.method": f"{__name__}:Maker.make",
        "model.trainable_variables.filter_fn": f"{__name__}:keep_all",
    }
    assert load_text(tmp_path, config.to_json()) == config


def test_only_own_functions_are_marked(tmp_path: Path) -> None:
    config = Config({"own": {"a/b~": [keep_all, f"{__name__}:keep_all"]}, "limit": -math.inf, "plain": "a:b"})
    assert config.to_plain()[FUNCTIONS_KEY] == ["own/a~1b~0/0", "limit"]
    assert load_text(tmp_path, config.to_json()) == config
    assert FUNCTIONS_KEY not in Config({"plain": "a:b"}).to_plain()


def local_function() -> Callable[..., Any]:
    def local(x: int) -> int:
        return x

    return local


def make(rate: float) -> Callable[..., Any]:
    return lambda step: rate * step


SPREAD = {
    "fn": lambda step: (0.1
                        if step < 100 else 0.01),
}  # fmt: skip


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (make(0.5), "return lambda step: rate * step  # rate = 0.5"),
        (SPREAD["fn"], '"fn": lambda step: (0.1 if step < 100 else 0.01)'),
        (eval("lambda x: x"), "<function <lambda>>"),
        (local_function(), "def local(x: int) -> int:\n    return x\n"),
        (functools.partial(keep_all, 3), "functools.partial(<function keep_all>, 3)"),
        (Maker().bound, f"<bound method Maker.bound of <{__name__}.Maker object>>"),
        ({1: 2}, "{1: 2}"),
        (Path("a"), f"{Path('a')!r}"),
        (
            Described(0.5),
            {
                "class": f"{__name__}:Described",
                "config": {"rate": 0.5, "name": "described", "fn": f"{__name__}:keep_all"},
            },
        ),
    ],
)
def test_what_has_no_name_is_written_but_not_read(tmp_path: Path, value: Any, written: Any) -> None:
    config = Config({"own": value})
    assert config.to_plain() == {"own": written, FUNCTIONS_KEY: ["own"]}
    with pytest.raises(ConfigError, match=r"own: .* cannot be read back") as caught:
        load_text(tmp_path, config.to_json())
    assert "\n" not in str(caught.value)
    if isinstance(value, Described):
        config = Config({"model.optimizer.method": value})
        with pytest.raises(ConfigError, match=r"method: '.*:Described' cannot be read back"):
            load_text(tmp_path, config.to_json())


def test_loading_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config_test_bomb.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="import config_test_bomb first"):
        load_text(tmp_path, '{"model.lr_schedule.custom.fn": "config_test_bomb:fn"}')
    assert "config_test_bomb" not in sys.modules


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n"a": 1,\n"b": }\n', "config.json, line 3: malformed JSON"),
        ("", "line 1: malformed JSON"),
        ("[1]", "expected a JSON object, got"),
        ('{"a": NaN}', "malformed JSON: 'NaN is not JSON'"),
        ('{"a": ' + "1" * 5000 + "}", "malformed JSON"),
        ('{"a": ' + "[" * 100_000, "malformed JSON"),
        ('{"model.batch_size": "8"}', "config.json: model.batch_size: expected int >= 1, got '8'"),
        ('{"trainer.nope": 1}', "config.json: unknown key 'trainer.nope'"),
        ('{"a b": 1}', "is not a key"),
        ('{"prototrain.functions": 3}', "expected list"),
        ('{"a": "math:nope", "prototrain.functions": ["a"]}', "a: module 'math' has no 'nope'"),
        ('{"a": 3, "prototrain.functions": ["a"]}', "a: 3 cannot be read back"),
        ('{"model.optimizer.method": "adm"}', "model.optimizer.method: 'adm' cannot be read back"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_text(tmp_path, text)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: cannot be read: No such file"):
        Config.load(tmp_path / "none.json")
    (tmp_path / "config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ConfigError, match="malformed JSON"):
        Config.load(tmp_path / "config.json")


def test_a_models_own_config_becomes_what_was_saved_of_it(tmp_path: Path) -> None:
    """Objects without a name stay where they are the same, keys that were not set are unset, names are imported."""

    def made() -> Config:
        nameless = {"own.fn": lambda x: x + 1, "own.thing": Described(1.0), "own.text": "len"}
        return Config({**REQUIRED, **nameless, "model.optimizer.method": Described(2.0), "own.unset": 1})

    saved = made()
    del saved["own.unset"]
    saved.override(['own.text="builtins:len"', "model.num_steps=7"])
    saved["model.weight_decay.filter_fn"] = keep_all
    saved["own.more"] = [keep_all, {"a": 1}]
    saved.save(tmp_path)
    config = made()
    mine = dict(config)
    config.restore(tmp_path / "config.json")
    assert config.to_json() == saved.to_json() and list(config) == list(saved)
    for key in ("own.fn", "own.thing", "model.optimizer.method"):
        assert config[key] is mine[key]
    assert config["own.text"] == "builtins:len" and "own.unset" not in config
    assert config["model.weight_decay.filter_fn"] is config["own.more"][0] is keep_all


@pytest.mark.parametrize("value", [lambda x: x + 2, Described(3.0)])
def test_what_cannot_be_restored_leaves_the_config_as_it_was(value: Any, tmp_path: Path) -> None:
    config = Config({**REQUIRED, "own.fn": value})
    config.save(tmp_path)
    other = Config({**REQUIRED, "own.fn": 3})
    with pytest.raises(ConfigError, match=r"config.json: own.fn: .* cannot be read back"):
        other.restore(tmp_path / "config.json")
    assert other["own.fn"] == 3
