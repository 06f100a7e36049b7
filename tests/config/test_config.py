from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from prototrain.config import Config, differing
from prototrain.config.values import texts_of_file
from prototrain.errors import ConfigError

REQUIRED = {"trainer.experiment_name": "mine", "model.batch_size": 32, "model.num_steps": 100}


def keep_all(variable: object) -> bool:
    return True


def test_mapping_is_over_the_set_keys() -> None:
    config = Config({"b": 1, "a": 2})
    assert "trainer.print_interval" not in config
    assert config["trainer.print_interval"] == 100
    assert list(config.items()) == [("b", 1), ("a", 2)]
    assert len(config) == 2 and config == {"a": 2, "b": 1} and config != Config({"a": 2})
    config.update({"c": 3}, d=4)
    assert config.pop("a") == 2 and config.pop("a", None) is None
    for remove in (config.pop, config.__delitem__):
        with pytest.raises(KeyError, match=r"trainer.print_interval"):
            remove("trainer.print_interval")
    assert config.setdefault("trainer.print_interval", 5) == 5 == config.setdefault("trainer.print_interval", 6)
    assert config.get("own") is None and config.get("own", 3) == 3
    for duplicate in (config.copy(), copy.copy(config), copy.deepcopy(config)):
        duplicate["c"] = 2
        assert config["c"] == 3


def test_nested_values() -> None:
    config = Config({"model": {"weight_decay": {"value": 0.1}, "own": {"a": 1}}, "trainer.keep_best": {"mode": "max"}})
    assert config == {"model.weight_decay.value": 0.1, "model.own": {"a": 1}, "trainer.keep_best.mode": "max"}
    with pytest.raises(ConfigError, match=r"trainer\.no_such"):
        Config({"trainer": {"no_such": 1}})


def test_validate() -> None:
    config = Config({**REQUIRED, "model.clip_gradients.maxval": -1})
    config.validate()  # without clipping it has no effect
    config["model.clip_gradients"] = True
    with pytest.raises(ConfigError, match=r"clip_gradients\.minval: expected less"):
        config.validate()


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("model.weight_decay.value = 1", "model.weight_decay.value", 1.0),
        ("trainer.steps_per_epoch=null", "trainer.steps_per_epoch", None),
        ('trainer.experiment_name="7"', "trainer.experiment_name", "7"),
        (f"model.lr_schedule.custom.fn={__name__}:keep_all", "model.lr_schedule.custom.fn", keep_all),
    ],
)
def test_override(text: str, key: str, value: Any) -> None:
    config = Config()
    config.override(text)
    assert config[key] == value and type(config[key]) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model.batch_size", "is not an override; expected KEY=VALUE"),
        ("model.widht=3", "unknown key 'model.widht'; did you mean 'model.width'"),
        ("trainer.experiment_name=False", r"trainer.experiment_name: expected str, got False"),
        ("model.units=[8, a]", r"model.units: expected list\[int\], got '\[8, a\]'"),
        ("model.rate=1e400", "model.rate: expected float, got '1e400'"),
    ],
)
def test_wrong_override_changes_nothing(text: str, message: str) -> None:
    own = {"width": 1, "rate": 0.1, "use_bias": True, "norm": "batch", "units": [8], "mixed": [1, "a"]}
    config = Config({f"model.{name}": value for name, value in own.items()})
    with pytest.raises(ConfigError, match=message) as caught:
        config.override(["model.width=2", text])
    assert "\n" not in str(caught.value)
    assert config == {f"model.{name}": value for name, value in own.items()}


@pytest.mark.parametrize(
    ("default", "text", "value"),
    [
        (True, "False", False),
        (0.5, "1E-3", 0.001),
        (None, "NONE", None),
        (None, '{"a": [1, null]}', {"a": [1, None]}),
        (None, "{'a': True, 'b': [.5, None]}", {"a": True, "b": [0.5, None]}),
        (None, "[{'a': None}]", [{"a": None}]),
        (None, "{name}", "{name}"),
        (None, "[" * 100_000, "[" * 100_000),
        ("a", "'1e-3'", "1e-3"),
        ("a", "1e-3", "1e-3"),
        ([0.5], "[1, .25, 1E-3]", [1.0, 0.25, 0.001]),
        ((1, 2), "[3, 4]", (3, 4)),
        ([1, "a"], "[2.5]", [2.5]),
        (len, "builtins:max", "builtins:max"),
    ],
)
def test_override_values_are_parsed(default: Any, text: str, value: Any) -> None:
    config = Config({"model.own": default})
    config.override(f"model.own={text}")
    assert config["model.own"] == value and type(config["model.own"]) is type(value)


def test_choice_named_none_and_default_none() -> None:
    config = Config({"model.own": None, "trainer.keep_best": "vld/loss"})
    config.keep_defaults()
    config.override(["model.data_sharding=none", "trainer.keep_best=none", "model.own=5"])
    assert config == {"model.data_sharding": "none", "trainer.keep_best": None, "model.own": 5}
    config.override("model.own=None")
    assert config["model.own"] is None


def test_text_shows_effective_values(tmp_path: Path) -> None:
    config = Config(
        {
            **REQUIRED,
            "model.width": 128,
            "model.note": "größer \ud800",
            "model.optimizer.method": "msgd",
            "model.lr_schedule.method": "constant",
            "model.lr_schedule.constant.value": 1e-3,
        }
    )
    config.save(tmp_path)
    lines = (tmp_path / "config.txt").read_text(encoding="utf-8").split("\n")
    for line in (
        'trainer.experiment_name          = "mine"',
        "trainer.print_interval           = 100  # default",
        "model.batch_size        = 32",
        "model.width             = 128",
        'model.note              = "größer \\ud800"',
        "model.optimizer.msgd.momentum     = 0.9  # default",
        "model.lr_schedule.constant.value = 0.001",
    ):
        assert line in lines
    assert not any("adam" in line for line in lines)
    assert lines.count("") > 5 and lines[-1] == "" != lines[-2]


def test_differences() -> None:
    mine = Config({"model.batch_size": 8, "a": 1, "same": keep_all, "trainer.print_interval": 100, "c": None})
    theirs = Config({"b": [1], "same": keep_all, "model.batch_size": 16, "a": True, "trainer.random_seed": 3})
    expected = [
        ("model.batch_size", [8, 16]),
        ("a", [1, True]),
        ("c", [None, "(unset)"]),
        ("b", ["(unset)", [1]]),
        ("trainer.random_seed", [1337, 3]),
    ]
    assert differing([mine, theirs]) == expected
    assert differing([mine, json.loads(theirs.to_json())]) == expected
    assert differing([mine, mine.copy()]) == []


def test_arguments_of_other_methods_have_no_effect() -> None:
    config = Config({"model.optimizer.method": "adamw", "model.lr_schedule.method": "exp"})
    assert config.why_without_effect("model.optimizer.adamw.beta_1") is None
    assert config.why_without_effect("model.lr_schedule.warmup_steps") is None
    assert config.why_without_effect("model.optimizer.adam.beta1") == "model.optimizer.method is 'adamw'"
    assert config.why_without_effect("model.lr_schedule.step.values") == "model.lr_schedule.method is 'exp'"
    assert config.why_without_effect("model.width.of.all") is None


def test_keys_without_effect() -> None:
    left_out = {"model.batch_size": 4, "trainer.summary_save_interval": 50, "actions.export.inputs": ["x"]}
    config = Config({**left_out, "trainer.print_interval": 7})
    config.to_json(), config.copy()["trainer.print_interval"]
    assert config.without_effect() == {"trainer.print_interval": "nothing in this run reads it"}
    assert config.get("trainer.print_interval") == 7
    assert config.without_effect() == {}
    clip, decay = "model.clip_gradients", "model.weight_decay"
    unused = {f"{clip}.maxval": 0.1, f"{decay}.filter_regex": "a", "model.lr_schedule.warmup_start": 0.1}
    config = Config({**unused, "trainer.keep_best.mode": "max"})
    reasons = config.without_effect()
    assert reasons.keys() == {*unused, "trainer.keep_best.mode"}
    assert reasons[f"{decay}.filter_regex"] == f"{decay}.value and {decay}.l1 are not set"
    config.update({clip: True, f"{decay}.l1": 0.1, "model.lr_schedule.warmup_steps": 5, "trainer.keep_best": "x"})
    assert not any(map(config.why_without_effect, unused))

    config = Config(unused)
    assert config[f"{decay}.filter_regex"] == "a" and f"{decay}.filter_regex" not in config.without_effect()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"model.batch_size": 3, "model": {"lr_schedule": {"method": "exp"}, "own": {"a": 1}}}'),
        ("a.yaml", "model.batch_size: 3\nmodel:\n  lr_schedule: {method: exp}\n  own: {a: 1}\n"),
    ],
)
def test_nested_and_dotted_keys(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    config = Config({"model.own": {}})
    config.override(texts_of_file(tmp_path / name))
    assert dict(config) == {"model.own": {"a": 1}, "model.batch_size": 3, "model.lr_schedule.method": "exp"}
    config = Config({"mine.units": 1, "mine.deep.rate": 0.1})
    config.override(["mine={'units': 2, 'deep': {'rate': 3}}", "mine.units=4"])
    assert dict(config) == {"mine.units": 4, "mine.deep.rate": 3.0}
    with pytest.raises(ConfigError, match="unknown key 'mine'"):
        config.override("mine={}")


def test_texts_of_a_file_keep_their_form(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("mine.name: 2024\nmine.open: abc\n")
    config = Config({"mine.name": "a", "mine.open": None})
    config.override([*texts_of_file(tmp_path / "a.yaml"), "mine.open=5"])  # checked against the model's own value
    assert dict(config) == {"mine.name": "2024", "mine.open": 5}
    (tmp_path / "b.yaml").write_text("mine.name: 1.10")
    with pytest.raises(ConfigError, match=r"b\.yaml: mine\.name: expected str, got 1\.1"):
        config.override(texts_of_file(tmp_path / "b.yaml"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "", r"a\.txt: a file of values ends in \.json, \.yaml or \.yml"),
        ("empty.yml", "", r"empty\.yml: is empty"),
        ("a.yml", "a: [", r"a\.yml: cannot be read: while parsing a flow node"),
        ("b.yml", "a: 1\nb: {c: 1, c: 2}", r"b\.yml: cannot be read: c is set twice"),
        ("b.json", '{"a": 1, "a": 2}', r"b\.json: cannot be read: a is set twice"),
        ("c.json", '{"model": {"batch_size": 1}, "model.batch_size": 2}', r"c\.json: model\.batch_size is set twice"),
    ],
)
def test_wrong_file_is_one_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        texts_of_file(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_yaml_values_equal_command_line_values(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        'base: &base {model.rate: 1e-3}\n<<: *base\nmodel.bias: FALSE\nmodel.name: "False"\nmodel.norm: no\n'
        "model.units: [.25, 1E-3]\nmodel.data_sharding: none\ntrainer.keep_best: ~\nmodel.day: 2020-01-01\n"
    )
    own = {"base": {}, "model.rate": 0.1, "model.bias": True, "model.name": "", "model.norm": "", "model.units": [1.0]}
    config = Config({**own, "model.day": ""})
    config.override(texts_of_file(tmp_path / "a.yaml"))
    assert config == {
        "base": {"model.rate": 0.001},
        "model.rate": 0.001,
        "model.bias": False,
        "model.name": "False",
        "model.norm": "no",
        "model.units": [0.25, 0.001],
        "model.data_sharding": "none",
        "trainer.keep_best": None,
        "model.day": "2020-01-01",
    }
