"""Tests of the keys that prototrain reads: types, defaults, bounds and messages."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prototrain.config import FUNCTIONS_KEY, Config, ConfigKeyError
from prototrain.config.optimizer_keys import KERAS_OPTIMIZERS
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

    def bound(self) -> None: ...


KERAS_ARGUMENTS = [
    (method, name, default) for method, (_, found) in KERAS_OPTIMIZERS.items() for name, default in found.items()
]

# The contract's table: every key, its default, a good value, and one that is wrong.
CONTRACT: list[tuple[str, Any, Any, Any]] = [
    ("trainer.experiment_base_dir", "experiments", "runs", 1),
    ("trainer.experiment_name", UNSET, "a-{timestamp}", "a/b"),
    ("trainer.validation_step_interval", 100, "1 epoch", "0 epochs"),
    ("trainer.summary_save_interval", 50, "20 epochs", "epoch"),
    ("trainer.print_interval", 100, 7, 1.0),
    ("trainer.progress_scalars", ["loss"], ["loss", "vld/*"], "loss"),
    ("trainer.checkpoint_save_interval", 1000, 7, "7"),
    ("trainer.failures_per_day", 0.03, 2.0, 0),
    ("trainer.validation_batches", 1, 0, -1),
    ("trainer.rehearse_validation", True, False, 1),
    ("trainer.max_checkpoints_to_keep", 5, 1, 0),
    ("trainer.random_seed", 1337, 0, True),
    ("trainer.steps_per_epoch", None, 10, 0),
    ("trainer.keep_best", None, "vld/loss", 3),
    ("trainer.keep_best.mode", "min", "max", "best"),
    ("trainer.early_stopping", None, "vld/loss", True),
    ("trainer.early_stopping.mode", "min", "max", None),
    ("trainer.early_stopping.patience", 10, 1, 0),
    ("trainer.early_stopping.min_delta", 0.0, 0.1, -0.1),
    ("trainer.early_stopping.restore_best", False, True, 1),
    ("trainer.data_position", "auto", "replay", "exact"),
    ("trainer.limit_batches", None, 1, 0),
    ("trainer.overfit_batches", None, 1, 1.5),
    ("trainer.cluster_timeout", 300.0, 1.5, 0),
    ("trainer.stall_timeout", 1800.0, 60.0, "long"),
    ("model.weights_load_path", None, "path", 3),
    ("model.batch_size", UNSET, 1, 0),
    ("model.num_steps", UNSET, 0, -1),
    ("model.num_epochs", None, 3, 0),
    ("model.data_sharding", "batch", "files", "examples"),
    ("model.accumulate_steps", 1, 4, 0),
    ("model.jit_compile", False, True, 1),
    ("model.mixed_precision", None, "mixed_bfloat16", True),
    ("model.trainable_variables.filter_fn", None, keep_all, 3),
    ("model.trainable_variables.filter_regex", None, "fc.*", "("),
    ("model.weight_decay.value", 0.0, 1e-4, -1e-4),
    ("model.weight_decay.l1", 0.0, 1e-4, -1e-4),
    ("model.weight_decay.filter_fn", None, keep_all, "not a reference"),
    ("model.weight_decay.filter_regex", None, ".*kernel", "[a"),
    ("model.clip_gradients", False, True, "yes"),
    ("model.clip_gradients.minval", -1.0, -2.0, "a"),
    ("model.clip_gradients.maxval", 1.0, 2.0, math.inf),
    ("model.clip_gradients.global_norm", None, 5.0, 0.0),
    ("model.optimizer.method", UNSET, "adam", "adm"),
    ("model.optimizer.msgd.momentum", 0.9, 0.5, 1.5),
    ("model.optimizer.msgd.use_nesterov", False, True, 0),
    ("model.optimizer.adam.beta1", 0.9, 0.5, 1.0),
    ("model.optimizer.adam.beta2", 0.999, 0.99, -0.1),
    ("model.optimizer.adam.epsilon", 1e-8, 1e-4, math.nan),
    ("model.optimizer.rmsprop.decay", 0.9, 0.5, 2.0),
    ("model.optimizer.rmsprop.momentum", 0.0, 0.5, True),
    ("model.optimizer.rmsprop.epsilon", 1e-10, 1e-4, -1.0),
    ("model.optimizer.rmsprop.centered", False, True, None),
    *((f"model.optimizer.{method}.{name}", default, default, "much") for method, name, default in KERAS_ARGUMENTS),
    ("model.lr_schedule.method", UNSET, "exp", "square"),
    ("model.lr_schedule.warmup_steps", 0, 10, -1),
    ("model.lr_schedule.warmup_start", 0.0, 0.1, -0.1),
    ("model.lr_schedule.step.boundaries", UNSET, [10, 20], [10, 2.5]),
    ("model.lr_schedule.step.values", UNSET, [0.1, 0.2, 0.3], [0.1, "a"]),
    ("model.lr_schedule.constant.value", UNSET, 0.0, 10**400),
    ("model.lr_schedule.exp.value", UNSET, 0.1, None),
    ("model.lr_schedule.exp.decay_rate", UNSET, 0.95, 0.0),
    ("model.lr_schedule.exp.decay_steps", UNSET, 100, 0),
    ("model.lr_schedule.exp.staircase", False, True, 1),
    ("model.lr_schedule.custom.fn", UNSET, keep_all, "keep_all"),
    ("model.lr_schedule.cosine.value", UNSET, 0.1, None),
    ("model.lr_schedule.cosine.decay_steps", None, 10, 0),
    ("model.lr_schedule.cosine.final", 0.0, 0.1, -1.0),
    ("model.lr_schedule.polynomial.value", UNSET, 0.1, "a"),
    ("model.lr_schedule.polynomial.decay_steps", None, 10, 0),
    ("model.lr_schedule.polynomial.final", 0.0, 0.1, -1.0),
    ("model.lr_schedule.polynomial.power", 1.0, 2.0, 0.0),
    ("model.lr_schedule.linear.steps", UNSET, [0, 10], [-1]),
    ("model.lr_schedule.linear.values", UNSET, [0.0, 0.1], ["a"]),
    ("actions.export.inputs", UNSET, ["examples"], ["a", 1]),
    ("actions.export.outputs", UNSET, ["logits"], "logits"),
]


def test_the_table_covers_the_schema() -> None:
    assert [key for key, *_ in CONTRACT] == list(SCHEMA)


@pytest.mark.parametrize(("key", "default", "good", "wrong"), CONTRACT)
def test_each_key(key: str, default: Any, good: Any, wrong: Any) -> None:
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


LARGE = f"{2**63} has more than 64 bits"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("trainer.print_interval", 0, 'trainer.print_interval: expected int >= 1 or "N epochs", got 0'),
        ("trainer.steps_per_epoch", "a", "trainer.steps_per_epoch: expected int >= 1 or None, got 'a'"),
        ("trainer.validation_batches", 1e23, "trainer.validation_batches: expected int >= 0, got 1e+23"),
        ("trainer.validation_batches", 2**63, f"trainer.validation_batches: {LARGE}"),
        ("model.lr_schedule.step.boundaries", [2**63], f"model.lr_schedule.step.boundaries: {LARGE}"),
        ("model.optimizer.adam.beta1", 1, "model.optimizer.adam.beta1: expected float >= 0 and < 1, got 1"),
        (
            "model.lr_schedule.method",
            3,
            "model.lr_schedule.method: expected step or constant or exp or custom or cosine or polynomial or linear, "
            "got 3",
        ),
        ("model.lr_schedule.step.values", 3, "model.lr_schedule.step.values: expected list[float] >= 0, got 3"),
        ("trainer.batch", 5, "unknown key 'trainer.batch'; the nearest known one is trainer.limit_batches"),
        ("model.optimizer", "adam", "unknown key 'model.optimizer'; the nearest known one is model.optimizer.method"),
    ],
)  # fmt: skip
def test_messages(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config({key: value})
    assert str(caught.value) == message


@pytest.mark.parametrize("key", ["trainer.x", "model.optimizer.adam.beta3", "model.weight_decay"])
def test_unknown_keys_in_strict_namespaces(key: str) -> None:
    with pytest.raises(ConfigKeyError, match="nearest known one is"):
        Config()[key] = 1
    with pytest.raises(KeyError, match="nearest known one is"):
        Config()[key]


@pytest.mark.parametrize("key", ["", "a.", "a..b", "a=b", "a\n", 3, FUNCTIONS_KEY])
def test_malformed_keys(key: Any) -> None:
    with pytest.raises(ConfigError):
        Config()[key] = 1


@pytest.mark.parametrize("name", ["", "..", ".hidden", "/a", "a\\b", "a\0b"])
def test_experiment_name_stays_in_its_directory(name: str) -> None:
    with pytest.raises(ConfigError, match="leave the base directory"):
        Config({"trainer.experiment_name": name})


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [
        ("model.weight_decay.value", 1, 1.0),
        ("model.weight_decay.value", np.float32(0.5), 0.5),
        ("model.batch_size", np.int64(4), 4),
        ("model.lr_schedule.step.boundaries", (1, 2), [1, 2]),
        ("model.lr_schedule.step.values", (1, 0.5), [1.0, 0.5]),
        ("model.trainable_variables.filter_fn", f"{__name__}:Maker.keep", Maker.keep),
        ("model.optimizer.method", "collections:OrderedDict", __import__("collections").OrderedDict),
        ("model.own", (1, 2), (1, 2)),
    ],
)
def test_conversions(key: str, value: Any, stored: Any) -> None:
    result = Config({key: value})[key]
    assert result == stored
    assert type(result) is type(stored)
    if isinstance(stored, list):
        assert [type(x) for x in result] == [type(x) for x in stored]


def test_function_references_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config_test_raises.py").write_text("raise RuntimeError('not today')")
    (tmp_path / "config_test_exits.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(str(tmp_path))
    for reference, message in [
        ("no_such_module_x:f", "cannot import 'no_such_module_x'"),
        ("math:nothing", "module 'math' has no 'nothing'"),
        ("math:pi", "expected function"),
        ("config_test_raises:f", "RuntimeError: 'not today'"),
        ("config_test_exits:f", "SystemExit"),
        ("a b:c", 'expected function or "module:name"'),
    ]:
        with pytest.raises(ConfigError, match=message) as caught:
            Config({"model.lr_schedule.custom.fn": reference})
        assert str(caught.value).startswith("model.lr_schedule.custom.fn: ")
