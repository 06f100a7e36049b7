from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import optimizers
from prototrain.config import Config
from prototrain.config.schema import KERAS_OPTIMIZERS
from prototrain.errors import ConfigError
from prototrain.gradient_processors import summed
from prototrain.optimizers import CheckGradient, ClipByGlobalNorm, ClipByValue, MapGradient, ScaleGradient
from tests.tiny import tiny_trainer

CONSTANT = {"model.lr_schedule.method": "constant", "model.lr_schedule.constant.value": 0.25}


@pytest.mark.parametrize("method", KERAS_OPTIMIZERS)
def test_keras_optimizers_by_name(method: str) -> None:
    name, arguments = KERAS_OPTIMIZERS[method]
    kind = getattr(keras.optimizers, name)
    signature = inspect.signature(kind.__init__).parameters
    of_every_one = {"self", "learning_rate", "name", "kwargs", "clipnorm", "clipvalue", "global_clipnorm", "use_ema"}
    of_every_one |= {"ema_momentum", "ema_overwrite_frequency", "loss_scale_factor", "gradient_accumulation_steps"}
    assert arguments == {key: found.default for key, found in signature.items() if key not in of_every_one}
    chosen = {"model.optimizer.method": method, f"model.optimizer.{method}.weight_decay": 0.25}
    optimizer = optimizers.make_optimizer(Config({**CONSTANT, **chosen}))
    assert type(optimizer) is kind and optimizer.get_config()["weight_decay"] == 0.25


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("method", ["adam", "rmsprop", *KERAS_OPTIMIZERS])
def test_slots_keep_a_non_finite_gradient(method: str, bad: float) -> None:
    optimizer = optimizers.make_optimizer(Config({**CONSTANT, "model.optimizer.method": method}))
    variables = [keras.Variable(np.ones(shape, "float32")) for shape in ([3, 2], [2])]
    optimizer.build(variables)
    assert optimizers.keeps_non_finite(optimizer)
    good = [tf.constant(0.1, shape=variable.shape) for variable in variables]
    optimizer.apply(good, variables)
    optimizer.apply([tf.constant([[0.1, 0.1], [bad, 0.1], [0.1, 0.1]]), good[1]], variables)
    for _ in range(3):
        assert not np.all([np.isfinite(one).all() for one in optimizer.variables])
        optimizer.apply(good, variables)


@pytest.mark.parametrize(
    ("method", "options", "kind", "expected"),
    [
        ("sgd", {}, keras.optimizers.SGD, {"momentum": 0.0, "nesterov": False}),
        ("msgd", {}, keras.optimizers.SGD, {"momentum": 0.9, "nesterov": False}),
        ("msgd", {"momentum": 0.5, "use_nesterov": True}, keras.optimizers.SGD, {"momentum": 0.5, "nesterov": True}),
        ("adam", {"beta1": 0.5}, keras.optimizers.Adam, {"beta_1": 0.5, "beta_2": 0.999, "epsilon": 1e-8}),
        (
            "rmsprop",
            {"decay": 0.5, "momentum": 0.1, "epsilon": 0.1, "centered": True},
            keras.optimizers.RMSprop,
            {"rho": 0.5, "momentum": 0.1, "epsilon": 0.1, "centered": True},
        ),
    ],
)
def test_methods(method: str, options: dict[str, Any], kind: type, expected: dict[str, Any]) -> None:
    keys = {f"model.optimizer.{method}.{name}": value for name, value in options.items()}
    optimizer = optimizers.make_optimizer(Config({**CONSTANT, "model.optimizer.method": method, **keys}))
    assert isinstance(optimizer, kind)
    config = optimizer.get_config()
    assert {name: config[name] for name in expected} == expected
    assert config["learning_rate"] == 0.25


def test_custom_optimizers() -> None:
    """An instance is used itself, and a factory makes a new one each time; both take the rate of a schedule."""
    nadam = keras.optimizers.Nadam(0.5)
    for keys, rate in (({}, 0.5), (CONSTANT, 0.25)):
        assert optimizers.make_optimizer(Config({**keys, "model.optimizer.method": nadam})) is nadam
        assert float(nadam.learning_rate) == rate
    factory = {"model.optimizer.method": lambda: keras.optimizers.Nadam(0.5)}
    plain, scheduled = (optimizers.make_optimizer(Config({**keys, **factory})) for keys in ({}, CONSTANT))
    assert type(plain) is type(scheduled) is keras.optimizers.Nadam
    assert (float(plain.learning_rate), float(scheduled.learning_rate)) == (0.5, 0.25)


def built() -> keras.optimizers.Optimizer:
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([keras.Variable([1.0])])
    return optimizer


def with_schedule() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model.optimizer.method": "adam"}, "model.lr_schedule.method is not set; the optimizer 'adam' needs"),
        ({"model.optimizer.method": built()}, "already built by another trainer; give a factory"),
        ({**CONSTANT, "model.optimizer.method": with_schedule()}, "has its own learning-rate schedule"),
        ({"model.optimizer.method": "adam", "model.lr_schedule.method": "constant"}, r"constant\.value is not set"),
    ],
)
def test_wrong_optimizers(keys: dict[str, Any], message: str) -> None:
    config = Config(keys)
    with pytest.raises(ConfigError, match=message) as caught:
        optimizers.make_optimizer(config)
    assert "\n" not in str(caught.value)


DENSE = tf.constant([[3.0, -4.0]])
# Row 2 occurs twice: its gradient is the sum, [6, -8].
SPARSE = tf.IndexedSlices(
    tf.constant([[3.0, -4.0], [1.0, 0.0], [3.0, -4.0]]), tf.constant([2, 0, 2]), tf.constant([4, 2])
)
SPARSE_DENSE = [[1.0, 0.0], [0.0, 0.0], [6.0, -8.0], [0.0, 0.0]]


def pairs() -> list[tuple[Any, Any]]:
    return [
        (DENSE, tf.Variable([[0.0, 0.0]], name="fc0/kernel")),
        (None, tf.Variable(0.0, name="unused")),
        (SPARSE, tf.Variable(tf.zeros((4, 2)), name="embedding")),
    ]


def as_lists(processed: list[tuple[Any, Any]]) -> list[Any]:
    return [None if gradient is None else tf.convert_to_tensor(gradient).numpy().tolist() for gradient, _ in processed]


NORM = math.sqrt(9 + 16 + 1 + 36 + 64)


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (ClipByValue(-2.0, 5.0), [[[3.0, -2.0]], None, [[1.0, 0.0], [0.0, 0.0], [5.0, -2.0], [0.0, 0.0]]]),
        (ClipByGlobalNorm(1000.0), [[[3.0, -4.0]], None, SPARSE_DENSE]),
        (ClipByGlobalNorm(NORM / 2), [[[1.5, -2.0]], None, (np.array(SPARSE_DENSE) / 2).tolist()]),
        (MapGradient(lambda gradient: -gradient, "fc.*"), [[[-3.0, 4.0]], None, SPARSE_DENSE]),
        (MapGradient(lambda gradient: None, "emb.*"), [[[3.0, -4.0]], None, None]),
        (MapGradient(lambda gradient, variable: gradient + variable + 1, "fc.*"), [[[4.0, -3.0]], None, SPARSE_DENSE]),
        (
            ScaleGradient({"fc0/.*": 2.0, "fc.*": 9.0, "emb.*": 0.5, "un.*": 3.0}),
            [[[6.0, -8.0]], None, (np.array(SPARSE_DENSE) / 2).tolist()],
        ),
        (ScaleGradient([("e.*", 0.0), (".*", 2.0)]), [[[6.0, -8.0]], None, None]),
        (optimizers.PrintGradient("fc.*"), [[[3.0, -4.0]], None, SPARSE_DENSE]),
        (optimizers.SummaryGradient(), [[[3.0, -4.0]], None, SPARSE_DENSE]),
        (CheckGradient(), [[[3.0, -4.0]], None, SPARSE_DENSE]),
    ],
)
@pytest.mark.parametrize("in_graph", [False, True])
def test_processors(processor: Callable[..., Any], expected: list[Any], in_graph: bool) -> None:
    before = pairs()
    results: list[tuple[Any, Any]] = []

    def run() -> list[Any]:
        results[:] = processor(before)
        return [gradient for gradient, _ in results]

    gradients = tf.function(run)() if in_graph else run()
    variables = [variable for _, variable in results]
    assert all(after is variable for after, (_, variable) in zip(variables, before, strict=True))
    if not isinstance(processor, MapGradient):
        assert gradients[2] is None or isinstance(gradients[2], tf.IndexedSlices)
    for result, wanted in zip(as_lists([(gradient, None) for gradient in gradients]), expected, strict=True):
        if wanted is None:
            assert result is None
        else:
            np.testing.assert_allclose(result, wanted, rtol=1e-6)


def test_print_gradient(capfd: pytest.CaptureFixture[str]) -> None:
    optimizers.PrintGradient("fc.*")(pairs())
    assert "gradient of fc0/kernel: mean -0.5 rms 3.5355" in capfd.readouterr().out


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_check_gradient_names_the_variable(bad: float) -> None:
    for gradient in (tf.constant([bad]), tf.IndexedSlices(tf.constant([bad]), tf.constant([0]))):
        pair = (gradient, tf.Variable([0.0], name="fc0/kernel"))
        with pytest.raises(tf.errors.InvalidArgumentError, match="the gradient of fc0/kernel is not finite"):
            CheckGradient()([pair])
        with pytest.raises(tf.errors.InvalidArgumentError, match="the gradient of fc0/kernel is not finite"):
            tf.function(lambda pair=pair: CheckGradient()([pair])[0][0])()


def test_infinite_norm_is_kept() -> None:
    variable = tf.Variable([0.0])
    clipped = ClipByGlobalNorm(1.0)([(tf.constant([math.inf]), variable), (tf.constant([1.0], tf.float64), variable)])
    assert all(np.isnan(gradient.numpy()).all() for gradient, _ in clipped)
    for make in (lambda: ClipByValue(1.0, 1.0), lambda: ClipByGlobalNorm(math.nan)):
        with pytest.raises(ConfigError, match=r"must be (below|above)"):
            make()
    with pytest.raises(ConfigError, match="not a regular expression"):
        ScaleGradient({"*": 1.0})
    trainer = tiny_trainer(model__mixed_precision="mixed_float16")
    trainer.gradient_processors += [CheckGradient()]
    with pytest.raises(ConfigError, match="use StopOnNaN"):
        trainer.train([], max_steps=1)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, []),
        ({".minval": -3}, []),
        ({".global_norm": 2}, [{"norm": 2.0}]),
        ({"": True, ".global_norm": 2, ".minval": -3}, [{"minval": -3.0, "maxval": 1.0}, {"norm": 2.0}]),
    ],
)
def test_processors_from_config(keys: dict[str, Any], expected: list[dict[str, float]]) -> None:
    config = Config({f"model.clip_gradients{key}": value for key, value in keys.items()})
    assert [vars(processor) for processor in optimizers.processors_from_config(config)] == expected


@pytest.mark.parametrize(
    ("sparse", "dtype"), [(False, "float32"), (True, "float32"), (False, "float64"), (True, "float16")]
)
def test_adam_equals_keras(sparse: bool, dtype: str) -> None:
    def train(kind: type[keras.optimizers.Adam]) -> list[bytes]:
        start = np.arange(6, dtype=np.float32).reshape(3, 2) + 1
        variables = [keras.Variable(start, name=name, dtype=dtype) for name in "ab"]
        optimizer = kind(0.02, beta_1=0.8, epsilon=1e-5)
        optimizer.build(variables)

        @tf.function(autograph=False)
        def step(factor: tf.Tensor) -> None:
            dense = tf.sin(variables[0] * tf.cast(factor, dtype))
            other: Any = tf.IndexedSlices(dense[:2], tf.constant([2, 0]), tf.constant([3, 2])) if sparse else dense * 2
            optimizer.apply([dense, other], variables)

        for factor in np.linspace(0.1, 3, 5, dtype=np.float32):
            step(tf.constant(factor))
        return [np.asarray(variable).tobytes() for variable in [*variables, *optimizer.variables]]

    assert train(optimizers.Adam) == train(keras.optimizers.Adam)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adamax", "Nadam"])
def test_dense_gradients_for_optimizers_that_update_all_rows(name: str) -> None:
    def train(dense: bool) -> bytes:
        table = keras.Variable(np.arange(40, dtype=np.float32).reshape(20, 2))
        optimizer = optimizers.Adam(0.1) if name == "Adam" else getattr(keras.optimizers, name)(0.1)
        optimizer.build([table])
        assert optimizers.updates_all_rows(optimizer)
        random = np.random.default_rng(0)
        for _ in range(10):
            values, rows = random.normal(size=(8, 2)).astype(np.float32), random.integers(0, 20, 8)
            sparse = tf.IndexedSlices(tf.constant(values), tf.constant(rows), tf.constant([20, 2]))
            optimizer.apply([summed(sparse, dense=dense)], [table])
        return np.asarray(table).tobytes()

    assert train(dense=True) == train(dense=False)
    assert not optimizers.updates_all_rows(keras.optimizers.SGD(0.1))
