from __future__ import annotations

from typing import Any

import pytest

from prototrain.config import Config
from prototrain.config.values import read_value
from prototrain.errors import ConfigError, SweepError
from prototrain.sweeps.plan import Plan
from prototrain.sweeps.space import Dimension, as_settings, from_mapping, parse_space
from tests.tiny import tiny_config


def grid(texts: list[str]) -> Any:
    return from_mapping(parse_space(texts, is_grid=True))


def search(texts: list[str]) -> Any:
    return from_mapping(parse_space(texts, is_grid=False))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("k=16,32", (16, 32)),
        ('k=1,"1",""', (1, "1", "")),
        ('k="a,b",c', ("a,b", "c")),
        ("k=True,False,None", (True, False, None)),
        ("k=[.5,True],it's,b]", ([0.5, True], "it's", "b]")),
    ],
)
def test_grid(text: str, values: tuple[Any, ...]) -> None:
    assert grid([text]) == {"k": Dimension("choice", values)}
    settings = [setting for value in values for setting in as_settings({"k": value})]
    assert tuple(read_value(setting.removeprefix("k=")) for setting in settings) == values


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("k=log:1e-5..1e-1", Dimension("log", (1e-5, 0.1))),
        ("k=float:-1..1", Dimension("float", (-1.0, 1.0))),
        ("k=int:16..256", Dimension("int", (16, 256))),
        ("k=choice:a|b|[1, 2]|3", Dimension("choice", ("a", "b", [1, 2], 3))),
    ],
)
def test_search(text: str, dimension: Dimension) -> None:
    assert search([text]) == {"k": dimension}


@pytest.mark.parametrize(
    ("parse", "texts", "message"),
    [
        (grid, ["k="], "k has no values to try"),
        (grid, ["k=1,2,1"], "k: 1 is given twice"),
        (search, ["k=1,2"], "k=1,2: expected k= and then log:1e-5..1e-1"),
        (search, ["k=log:0..1"], "a logarithmic range must begin above 0"),
        (from_mapping, {"k": [len]}, "not JSON serializable; a function is given as a text, 'module:name'"),
    ],
)
def test_malformed_space_is_one_line(parse: Any, texts: Any, message: str) -> None:
    with pytest.raises(SweepError) as raised:
        parse(texts)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def plan_of(space: Any, config: Config, *, trials: int | None = None) -> Plan:
    return Plan(config=config, space=space, trials=trials, objective="loss", mode="min")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({}, "the space is empty"),
        (grid(["model.own=a"]), "model.own: expected float, got 'a'"),
        (search(["model.batch_size=float:1..8"]), "model.batch_size: expected int >= 1, got 1.0"),
        (grid(["trainer.experiment_name=a,b"]), "trainer.experiment_name cannot be swept"),
        (grid(["model.lr_schedule.method=constant,exp"]), "model.lr_schedule.exp.value is not set"),
    ],
)
def test_space_that_does_not_fit_the_config(space: Any, message: str) -> None:
    config = tiny_config(**{"model.own": 0.1})
    before = config.copy()
    trials = None if all(dimension.kind == "choice" for dimension in space.values()) else 2
    with pytest.raises((SweepError, ConfigError)) as raised:
        plan_of(space, config, trials=trials)
    assert message in str(raised.value) and config == before


def test_space_may_set_missing_keys() -> None:
    config = tiny_config()
    config.override(["model.lr_schedule.method=exp"])
    space = grid([f"model.lr_schedule.exp.{name}=0.5,1" for name in ("value", "decay_rate")])
    space |= grid(["model.lr_schedule.exp.decay_steps=10"])
    assert plan_of(space, config).total == 4
    with pytest.raises(ConfigError, match=r"lr_schedule\.exp\.value is not set"):
        plan_of(grid(["model.batch_size=8"]), config)
