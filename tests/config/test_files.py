from __future__ import annotations

from pathlib import Path

import pytest

from prototrain.config import Config
from prototrain.config.values import texts_of_file
from prototrain.errors import ConfigError


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


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "", r"a\.txt: a file of values ends in \.json, \.yaml or \.yml"),
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
