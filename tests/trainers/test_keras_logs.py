"""What `KerasTrainer.fit` logs is what `keras.Model.fit` logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from prototrain import KerasTrainer
from prototrain.callbacks import Summaries
from prototrain.errors import ModelError
from tests.tiny import Losses

X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
Y = np.eye(2, dtype=np.float32)[(X.sum(1) > 0).astype(int)]


class CountsHalves(keras.metrics.Metric):  # type: ignore[misc]
    """Gives two numbers by name."""

    def __init__(self) -> None:
        super().__init__(name="two")
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.count.assign_add(1.0)

    def result(self) -> dict[str, Any]:
        return {"whole": self.count, "half": self.count / 2}


class OwnMetrics(keras.Model):  # type: ignore[misc]
    """Adds a value to the metrics."""

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        found = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**found, "mean": keras.ops.mean(y_pred[:, 0])}


class OwnStep(keras.Model):  # type: ignore[misc]
    """Has a step of its own, which does what the usual one does."""

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


class EngineNames(keras.Model):  # type: ignore[misc]
    """Returns values that are called like the engine's scalars."""

    def train_step(self, data: Any) -> dict[str, Any]:
        found = super().train_step(data)
        return {"loss": found["loss"] * 2, "gradient_norm": found["loss"] * 3, "learning_rate": found["loss"] * 4}


class Measures(keras.callbacks.Callback):  # type: ignore[misc]
    """Puts a value into the logs, for those behind it."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["val_own"] = 1.0 - epoch


def _halves(epoch: int, rate: float) -> float:
    return rate / 2


def _history(fit_by: Callable[[Any], Any], kind: type, metrics: list[Any], callbacks: list[Any]) -> dict[str, Any]:
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    model = kind(inputs, keras.layers.Dense(2, "softmax", name="out")(inputs))
    model.compile("sgd", "categorical_crossentropy", metrics=metrics)
    history = fit_by(model).fit(X, Y, batch_size=8, epochs=4, shuffle=False, verbose=0, callbacks=callbacks)
    return dict(history.history)


@pytest.mark.parametrize(
    ("kind", "metrics", "callbacks"),
    [
        (keras.Model, lambda: [keras.metrics.F1Score()], list),
        (OwnStep, lambda: [keras.metrics.F1Score(), "accuracy"], list),
        (keras.Model, lambda: [CountsHalves()], list),
        (OwnMetrics, lambda: ["accuracy"], list),
        (EngineNames, list, list),
        (
            keras.Model,
            lambda: ["accuracy"],
            lambda: [
                Measures(),
                keras.callbacks.EarlyStopping("val_own", mode="max", patience=1),
                keras.callbacks.LearningRateScheduler(_halves),
            ],
        ),
    ],
)
def test_the_history_is_that_of_keras(kind: type, metrics: Any, callbacks: Any) -> None:
    expected = _history(lambda model: model, kind, metrics(), callbacks())
    found = _history(KerasTrainer, kind, metrics(), callbacks())
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)


class VectorOfStep(keras.Model):  # type: ignore[misc]
    """Returns a vector."""

    def train_step(self, data: Any) -> dict[str, Any]:
        return {**super().train_step(data), "mine": keras.ops.ones((2,))}


class VectorOfMetrics(keras.Model):  # type: ignore[misc]
    """Adds a vector."""

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        return {**super().compute_metrics(x, y, y_pred, sample_weight), "mine": keras.ops.ones((2,))}


@pytest.mark.parametrize(("kind", "method"), [(VectorOfStep, "train_step"), (VectorOfMetrics, "compute_metrics")])
def test_a_value_of_several_numbers_that_is_no_metric_is_refused(kind: type, method: str) -> None:
    inputs = keras.Input((4,))
    model = kind(inputs, keras.layers.Dense(2, "softmax", name="out")(inputs), name="own")
    model.compile("sgd", "categorical_crossentropy")
    with pytest.raises(ModelError, match=rf"own.{method} must return scalars; 'mine' has shape \(2,\)"):
        KerasTrainer(model, (X, Y))


def test_the_last_epoch_is_validated_in_its_turn_only() -> None:
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(2, "softmax", name="out")(inputs))
    model.compile("sgd", "categorical_crossentropy")
    history = KerasTrainer(model).fit(X, Y, epochs=3, verbose=0, validation_data=(X, Y), validation_freq=2)
    assert len(history.history["val_loss"]) == 1


def test_a_make_train_function_of_its_own_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    class Own(keras.Model):  # type: ignore[misc]
        """Makes its own function."""

        def make_train_function(self, force: bool = False) -> Any:
            return super().make_train_function(force)

    inputs = keras.Input((4,))
    model = Own(inputs, keras.layers.Dense(2, "softmax", name="out")(inputs), name="mine")
    model.compile("sgd", "categorical_crossentropy")
    KerasTrainer(model, (X, Y))
    assert "WARNING: make_train_function of mine is not called; override train_step" in capsys.readouterr().out


def test_a_metric_with_a_number_for_each_class_is_validated_as_several() -> None:
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(2, "softmax", name="out")(inputs))
    model.compile("sgd", "categorical_crossentropy", metrics=[keras.metrics.F1Score()])
    history = KerasTrainer(model).fit(X, Y, batch_size=8, verbose=0, validation_data=(X, Y))
    expected = model.evaluate(X, Y, batch_size=8, verbose=0, return_dict=True)["f1_score"]
    np.testing.assert_allclose([history.history[f"val_f1_score/{number}"][0] for number in (0, 1)], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "scale", "why"),
    [
        (OwnStep, None, "has a train_step of its own"),
        (keras.Model, 2.0, "has an optimizer that scales the loss itself"),
        (keras.Model, None, None),
    ],
)
def test_keys_without_effect_are_named(
    kind: type, scale: float | None, why: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = keras.Input((4,))
    model = kind(inputs, keras.layers.Dense(2, "softmax", name="out")(inputs), name="mine")
    model.compile(keras.optimizers.SGD(loss_scale_factor=scale), "categorical_crossentropy")
    KerasTrainer(model, (X, Y), config={"model.weight_decay.value": 0.1, "trainer.print_interval": 3})
    said = f"WARNING: mine {why}: without effect are model.weight_decay.value\n"
    assert (said in capsys.readouterr().out) == (why is not None)


@pytest.mark.parametrize("kind", [keras.Model, OwnStep])
def test_recorded_metrics_count_from_the_epoch_s_start_and_the_loss_is_a_mean(kind: Any) -> None:
    inputs = keras.Input((4,))
    model = kind(inputs, keras.layers.Dense(2, activation="softmax")(inputs))
    model.compile("sgd", "categorical_crossentropy", metrics=["accuracy"])
    trainer, seen = KerasTrainer(model, (X, Y), batch_size=8), Losses()
    trainer.train([seen, Summaries().every(steps=5)], max_epoch=2)
    for step, loss in trainer.monitors.history("trn/loss"):
        steps = [seen.by_step[number] for number in range(step - 4, step + 1)]
        assert loss == pytest.approx(np.mean(steps) if kind is keras.Model else steps[-1])
    accuracy = trainer.monitors.latest("trn/accuracy")
    assert accuracy == pytest.approx(trainer.outputs["accuracy"]) and round(accuracy * 40, 3).is_integer()
