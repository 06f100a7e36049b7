"""What `KerasTrainer.fit` takes, refuses and does as `keras.Model.fit`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from prototrain import KerasTrainer
from prototrain.errors import CallbackError, DataError, ModelError

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(40, 4)).astype(np.float32)
Y = (X[:, :1] > 0).astype(np.float32)


def dense(optimizer: Any = "sgd", **compiled: Any) -> keras.Model:
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="out")], name="dense")
    model.compile(optimizer, "mse", **compiled)
    return model


def two_inputs() -> keras.Model:
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    one, other = keras.Input((4,)), keras.Input((4,))
    model = keras.Model([one, other], keras.layers.Dense(1)(keras.layers.Add()([one, other])))
    model.compile("sgd", "mse")
    return model


class Distance(keras.Model):  # type: ignore[misc]
    """Has its loss from a layer, and no labels."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, pair: Any) -> Any:
        one, other = map(self.dense, pair)
        self.add_loss(keras.ops.mean((one - other) ** 2))
        return one


def distance() -> keras.Model:
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    model = Distance()
    model.compile("sgd")
    return model


class Growing(keras.utils.PyDataset):  # type: ignore[misc]
    """Gives other batches in each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return X[index * 10 : index * 10 + 10] * self.factor, Y[index * 10 : index * 10 + 10]

    def on_epoch_begin(self) -> None:
        self.factor *= 1.5


class Scaled(keras.Model):  # type: ignore[misc]
    """Says other values of its metrics, and not all of them."""

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        found = super().compute_metrics(x, y, y_pred, sample_weight)
        return {"loss": found["loss"], "mae": found["mae"] * 100}


def scaled() -> keras.Model:
    model = dense(metrics=["mae", "mse"])
    found = Scaled(model.inputs, model.outputs)
    found.compile("sgd", "mse", metrics=["mae", "mse"])
    return found


def speech() -> keras.Model:
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((10, 4)), keras.layers.Dense(5)])
    model.compile("sgd", keras.losses.CTC())
    return model


FRAMES = RANDOM.normal(size=(12, 10, 4)).astype(np.float32), RANDOM.integers(1, 5, (12, 3))


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (dense, lambda: {"x": X, "y": Y, "validation_split": 0.5, "validation_data": (X, Y)}),
        (two_inputs, lambda: {"x": [X, X * 2], "y": Y}),
        (distance, lambda: {"x": [X, X * 2]}),
        (dense, lambda: {"x": Growing()}),
        (scaled, lambda: {"x": X, "y": Y, "validation_data": (X, Y)}),
        (speech, lambda: {"x": FRAMES[0], "y": FRAMES[1]}),
    ],
)
def test_the_history_is_that_of_keras(make: Callable[[], keras.Model], arguments: Callable[[], dict[str, Any]]) -> None:
    options: dict[str, Any] = {"epochs": 2, "shuffle": False, "verbose": 0}
    expected = make().fit(**arguments(), **options).history
    found = KerasTrainer(make()).fit(**arguments(), **options).history
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "fit: this KerasTrainer has no data yet"),
        ({"x": X, "y": Y, "batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"x": X[:0], "y": Y[:0]}, "there are no examples"),
        ({"x": X, "y": Y, "workers": 2}, "fit: there is no argument workers"),
        ({"x": X, "y": Y, "epochs": 1.5}, "fit: epochs must be a whole number from 1 on, not 1.5"),
        ({"x": ((X, Y) for _ in range(2))}, "can be read only once: say how long an epoch is with steps_per_epoch="),
    ],
)
def test_mistakes_are_one_clear_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        KerasTrainer(dense()).fit(**arguments)


def test_data_for_an_evaluation_beside_that_of_the_trainer() -> None:
    with pytest.raises(DataError, match=r"evaluate takes the name of a dataset, not a ndarray; keras_model.evaluate"):
        KerasTrainer(dense(), (X, Y)).evaluate(X)  # type: ignore[arg-type]


@pytest.mark.parametrize("again", [{"optimizer": "adam"}, {}, {"metrics": ["mae"]}])
def test_a_model_that_was_compiled_again_needs_another_trainer(again: dict[str, Any]) -> None:
    model = dense()
    trainer = KerasTrainer(model)
    trainer.fit(X, Y, verbose=0)
    trainer.fit(verbose=0)
    model.compile(again.get("optimizer", model.optimizer), "mae", metrics=again.get("metrics"))
    with pytest.raises(ModelError, match="dense was compiled again since this KerasTrainer took it; make a new"):
        trainer.fit(verbose=0)


def test_config_keys_that_a_compiled_model_leaves_without_effect_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    keys = {"model.optimizer.method": "sgd", "model.batch_size": 10, "trainer.print_interval": 5}
    KerasTrainer(dense(), (X, Y), config=keys)
    assert "WARNING: without effect are model.optimizer.method, model.batch_size: what" in capsys.readouterr().out


def test_callbacks_of_one_kind_one_alone_and_lists_in_lists(tmp_path: Path) -> None:
    seen: list[str] = []

    def note(what: str) -> keras.callbacks.Callback:
        return keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(what))

    for callbacks in (note("alone"), [note("first"), [note("second")]]):
        KerasTrainer(dense()).fit(X, Y, verbose=0, callbacks=callbacks)
    assert seen == ["alone", "first", "second"]
    for epochs in (1, 2):
        trainer = KerasTrainer(dense(), experiment=tmp_path / "run")
        trainer.fit(X, Y, epochs=epochs, verbose=0, callbacks=[note("a"), note("b")])
    assert trainer.run.checkpoint is not None and seen[3:] == ["a", "b", "a", "b"]
    with pytest.raises(CallbackError, match="give the callbacks themselves, not a CallbackList"):
        KerasTrainer(dense()).fit(X, Y, callbacks=keras.callbacks.CallbackList([], model=dense()))


def test_a_backup_beside_an_experiment_is_refused(tmp_path: Path) -> None:
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    KerasTrainer(dense()).fit(X, Y, verbose=0, callbacks=[backup])
    with pytest.raises(CallbackError, match="BackupAndRestore would replace the weights"):
        KerasTrainer(dense(), experiment=tmp_path / "run").fit(X, Y, verbose=0, callbacks=[backup])


def test_a_run_that_early_stopping_has_ended_gives_the_same_when_it_is_started_again(tmp_path: Path) -> None:
    weights, histories = [], []
    for _ in range(2):
        model = dense(keras.optimizers.SGD(1.0))
        stopping = keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True)
        history = KerasTrainer(model, experiment=tmp_path).fit(X, Y, epochs=20, verbose=0, callbacks=[stopping])
        weights.append(model.get_weights())
        histories.append((history.history, history.epoch))
    assert histories[0] == histories[1] and 2 <= len(histories[0][1]) < 20
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


def _tags(directory: Path) -> list[str]:
    files = sorted(directory.rglob("*tfevents*"))
    return [value.tag for file in files for event in EventFileLoader(str(file)).Load() for value in event.summary.value]


def test_summaries_go_to_the_writer_that_the_user_has_set(tmp_path: Path) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path / "own"))

    def rate(epoch: int) -> float:
        tf.summary.scalar("rate", 0.1, step=epoch)
        return 0.1

    with writer.as_default():
        schedule = keras.callbacks.LearningRateScheduler(rate)
        KerasTrainer(dense()).fit(X, Y, verbose=0, callbacks=[schedule])
    writer.close()
    board = keras.callbacks.TensorBoard(str(tmp_path / "board"), update_freq=1, write_graph=False)
    KerasTrainer(dense()).fit(X, Y, verbose=0, batch_size=20, callbacks=[board])
    assert _tags(tmp_path / "own") == ["rate"]
    assert _tags(tmp_path / "board").count("batch_loss") == 2
