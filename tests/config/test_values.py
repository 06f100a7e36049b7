"""The keys of the schema, the saved form of a configuration, and what can be read back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prototrain.config import FUNCTIONS_KEY, Config, ConfigKeyError
from prototrain.config.schema import SCHEMA, UNSET
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


class Described:
    """Like a Keras object: a class and a config."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def get_config(self) -> dict[str, Any]:
        return {"rate": np.float32(self.rate), "name": "described", "fn": keep_all}


REQUIRED = {"trainer.experiment_name": "mine", "model.batch_size": 32, "model.num_steps": 100}


def restored(path: Path) -> Config:
    config = Config()
    config.restore(path)
    return config


def test_round_trip(tmp_path: Path) -> None:
    own = {
        "own.fn": keep_all,
        "own.make": Maker.make,
        "own.class": Maker,
        "own.builtin": len,
        "own.mean": np.mean,
        "own.text": f"{__name__}:keep_all",
        "own.plain": {"a/b~": [1, 0.5, None, True, "\u00e4"], "": {}},
    }
    schema = {"model.optimizer.method": Maker.make, "model.trainable_variables.filter_fn": keep_all}
    config = Config({**REQUIRED, **own, **schema})
    config.save(tmp_path)
    read = restored(tmp_path / "config.json")
    assert read == config and list(read) == list(config)
    assert read.to_json() == config.to_json()
    plain = config.to_plain()
    assert plain["model.optimizer.method"] == f"{__name__}:Maker.make"
    assert plain[FUNCTIONS_KEY] == ["own.fn", "own.make", "own.class", "own.builtin", "own.mean"]
    assert FUNCTIONS_KEY not in Config({"plain": "a:b"}).to_plain()


def test_unnamed_functions_are_written_but_not_read(tmp_path: Path) -> None:
    config = Config({"own": lambda step: 0.1})
    (written, marks) = config.to_plain().values()
    assert re.fullmatch(r"<function test_unnamed_.*<lambda>, line [0-9]+>", written) and marks == ["own"]
    config.save(tmp_path)
    with pytest.raises(ConfigError, match=r"own: .* cannot be read back") as caught:
        restored(tmp_path / "config.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{\n"a": 1,\n"b": }\n', "config.json, line 3: malformed JSON"),
        (b'{"model.batch_size": "8"}', "config.json: model.batch_size: expected int >= 1, got '8'"),
        (b'{"model.optimizer.method": {"class": "a:B"}}', "model.optimizer.method: expected msgd, adam"),
        (None, "cannot be read: No such file"),
    ],
)
def test_wrong_files(tmp_path: Path, text: bytes | None, message: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ConfigError, match=message) as caught:
        restored(tmp_path / "config.json")
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_restore_into_a_models_config(tmp_path: Path) -> None:
    """Objects without a name are kept, keys that were not set are unset, and names are imported."""

    def made() -> Config:
        nameless = {"own.fn": lambda x: x + 1, "own.thing": Described(1.0), "own.text": "len"}
        return Config({**REQUIRED, **nameless, "model.optimizer.method": Described(2.0), "own.unset": 1})

    saved = made()
    del saved["own.unset"]
    saved.override(['own.text="builtins:len"', "model.num_steps=7"])
    saved["model.weight_decay.filter_fn"] = keep_all
    saved.save(tmp_path)
    config = made()
    mine = dict(config)
    config.restore(tmp_path / "config.json")
    assert config.to_json() == saved.to_json() and list(config) == list(saved)
    for key in ("own.fn", "own.thing", "model.optimizer.method"):
        assert config[key] is mine[key]
    assert config["own.text"] == "builtins:len" and "own.unset" not in config
    assert config["model.weight_decay.filter_fn"] is keep_all
    config["own.fn"] = 3
    with pytest.raises(ConfigError, match=r"config.json: own.fn: .* cannot be read back"):
        config.restore(tmp_path / "config.json")
    assert config["own.fn"] == 3  # a failed restore changes nothing


# Keys of every type and with every kind of bound: the default, a good value, and one that is wrong.
KEYS: list[tuple[str, Any, Any, Any]] = [
    ("trainer.experiment_name", UNSET, "a-{timestamp}", "a/b"),
    ("trainer.validation_step_interval", 100, "1 epoch", "0 epochs"),
    ("trainer.progress_scalars", ["loss"], ["loss", "vld/*"], "loss"),
    ("trainer.checkpoint_save_interval", 1000, "auto", "7"),
    ("model.jit_compile", False, "loop", 1),
    ("model.trainable_variables.filter_fn", None, keep_all, 3),
    ("model.trainable_variables.filter_regex", None, "fc.*", "("),
    ("model.optimizer.method", UNSET, "adam", "adm"),
    ("model.optimizer.adam.beta1", 0.9, 0.5, 1.0),
    ("model.lr_schedule.step.values", UNSET, [0.1, 0.2, 0.3], [0.1, "a"]),
    ("model.lr_schedule.constant.value", UNSET, 0.0, 10**400),
]


@pytest.mark.parametrize(("key", "default", "good", "wrong"), KEYS)
def test_each_kind_of_key(key: str, default: Any, good: Any, wrong: Any) -> None:
    config = Config()
    if default is UNSET:
        with pytest.raises(ConfigKeyError, match="is not set; expected"):
            config[key]
    else:
        assert config[key] == default
        assert type(config[key]) is type(default)
    assert config.get(key, "other") == ("other" if default is UNSET else default)
    config[key] = good
    assert config[key] == good
    with pytest.raises(ConfigError, match=key) as caught:
        config[key] = wrong
    assert "\n" not in str(caught.value)
    assert config[key] == good


def test_defaults_are_valid() -> None:
    for key, spec in SCHEMA.items():
        if spec.default is not UNSET:
            assert Config({key: spec.default})[key] == spec.default, key


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("trainer.print_interval", 0, '^trainer.print_interval: expected int >= 1 or "N epochs", got 0$'),
        ("model.optimizer.adam.beta1", 1, "^model.optimizer.adam.beta1: expected float >= 0 and < 1, got 1$"),
        ("trainer.experiment_name", "", "is empty"),
        ("trainer.experiment_name", "..", "leave the base directory"),
    ],
)
def test_messages(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config({key: value})


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [
        ("model.weight_decay.value", 1, 1.0),
        ("model.batch_size", np.int64(4), 4),
        ("model.num_steps", 1e5, 100_000),
        ("model.lr_schedule.step.boundaries", (1, 2), [1, 2]),
        ("model.lr_schedule.step.values", (1, 0.5), [1.0, 0.5]),
        ("model.trainable_variables.filter_fn", f"{__name__}:Maker.keep", Maker.keep),
    ],
)
def test_conversions(key: str, value: Any, stored: Any) -> None:
    result = Config({key: value})[key]
    assert result == stored
    assert type(result) is type(stored)
    if isinstance(stored, list):
        assert [type(x) for x in result] == [type(x) for x in stored]
