"""`KerasTrainer.fit` trains, logs and raises errors like `keras.Model.fit`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from prototrain import KerasTrainer
from prototrain.callbacks import GradientNorm
from prototrain.errors import CallbackError, ConfigError, DataError, ModelError, PrototrainError
from tests.keras import models
from tests.keras.models import IMAGES, LABELS, MEANS, WEIGHTS, X, Y, batches, classifier, made


class Measures(keras.callbacks.Callback):  # type: ignore[misc]
    """Adds a value to the logs of later callbacks."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["val_own"] = 1.0 - epoch


def measuring() -> list[keras.callbacks.Callback]:
    stopping = keras.callbacks.EarlyStopping("val_own", mode="max", patience=1)
    return [Measures(), stopping, keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)]


Arguments = dict[str, Any]
CASES: dict[str, tuple[Callable[[], keras.Model], Callable[[], Arguments]]] = {
    "functional": (
        models.convnet,
        lambda: {"x": batches(IMAGES, LABELS[:, None]), "validation_data": batches(IMAGES, LABELS[:, None])},
    ),
    "two outputs": (
        models.two_outputs,
        lambda: {"x": {"image": IMAGES}, "y": {"label": LABELS, "mean": MEANS}, "validation_split": 0.25},
    ),
    "sample weights": (models.weighted, lambda: {"x": batches(IMAGES, MEANS, WEIGHTS)}),
    "class weights": (
        models.regularized,
        lambda: {
            "x": IMAGES.astype(np.float64),
            "y": LABELS,
            "class_weight": {1: 3.0, 0: 0.5},
            "batch_size": 16,
            "validation_split": 0.25,
            "validation_freq": 2,
        },
    ),
    "own optimizer": (models.doubling, lambda: {"x": IMAGES, "y": LABELS}),
    "two inputs, no labels": (models.distance, lambda: {"x": [X, X * 2]}),
    "train_step": (models.own_step, lambda: {"x": batches(IMAGES, MEANS), "validation_data": batches(IMAGES, MEANS)}),
    "compute_metrics": (partial(classifier, models.OwnMetrics, lambda: ["mae", "mse"]), lambda: {"x": X, "y": Y}),
    "metrics of several numbers": (
        partial(classifier, metrics=lambda: [keras.metrics.F1Score(), models.CountsHalves()]),
        lambda: {"x": X, "y": Y},
    ),
    "callbacks": (classifier, lambda: {"x": X, "y": Y, "epochs": 4, "callbacks": measuring()}),
    "averages, and weights restored at the end": (
        models.weighted,
        lambda: (
            {"x": batches(IMAGES, MEANS), "validation_data": batches(IMAGES, MEANS), "epochs": 4}
            | {"callbacks": [keras.callbacks.EarlyStopping("loss", mode="max", patience=1, restore_best_weights=True)]}
        ),
    ),
    "PyDataset": (classifier, lambda: {"x": models.Shuffling(), "validation_data": (X, Y), "validation_steps": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_model_trains_as_in_fit(case: str) -> None:
    make, arguments = CASES[case]
    there, here = made(make), made(make)
    keras.utils.set_random_seed(2)
    expected = there.fit(**{"epochs": 2, **arguments()}, verbose=0, shuffle=False).history
    keras.utils.set_random_seed(2)
    found = KerasTrainer(here).fit(**{"epochs": 2, **arguments()}, verbose=0, shuffle=False).history
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5, err_msg=name)
    all_mine, all_theirs = ([*model.variables, *model.optimizer.variables] for model in (here, there))
    for mine, theirs in zip(all_mine, all_theirs, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5, err_msg=mine.path)


def held(**config: Any) -> KerasTrainer:
    return KerasTrainer(classifier(), (X, Y), validation=(X, Y), batch_size=20, config=config)


def fit(*arguments: Any, **keywords: Any) -> Callable[[], Any]:
    return lambda: KerasTrainer(classifier()).fit(*arguments, **keywords)


REFUSED: dict[str, tuple[Callable[[], Any], type[PrototrainError], str]] = {
    "zip": (lambda: KerasTrainer(classifier(), zip([X], [Y], strict=True)), DataError, "a zip can be read only once"),
    "key of compile": (lambda: held(**{"model.optimizer.method": "sgd"}), ConfigError, "method has no effect"),
    "micro-batches": (lambda: held(**{"model.accumulate_steps": 2}), ConfigError, "gradient_accumulation_steps"),
    "labels of a dataset": (fit(batches(X, Y), Y), DataError, "y, sample_weight and validation_split are for arrays"),
    "other lengths": (fit(X, Y, validation_data=(X, Y[:3])), DataError, "the validation data must be .* of lengths"),
    "other data": (lambda: held().fit(X, Y), DataError, "has its data; make a new one"),
    "listed epochs": (lambda: held().fit(validation_freq=[1, 3]), DataError, "validation_freq must be a number"),
    "epochs in words": (fit(X, Y, epochs="2"), DataError, "epochs must be a number"),
    "listed class weights": (fit(X, Y, class_weight=[1, 2]), DataError, "class_weight must be a dict"),
    "turns of no validation": (
        fit(X, Y, validation_steps=2),
        DataError,
        "validation_steps has no effect without validation data",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_are_one_line(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()


def scaled(pairs: Any) -> Any:
    return pairs


@pytest.mark.parametrize("make", [models.classifier, models.own_step])
def test_settings_without_effect_are_named(make: Callable[[], keras.Model], capsys: pytest.CaptureFixture[str]) -> None:
    config = {"trainer.keep_best": "vld/loss", "trainer.max_checkpoints_to_keep": 2, "model.num_steps": 7}
    data = (X, Y) if make is models.classifier else batches(IMAGES, MEANS)
    trainer = KerasTrainer(make(), data, config=config)
    trainer.gradient_processors.append(scaled)
    trainer.fit(epochs=1, validation_split=float(0), verbose=0, callbacks=[GradientNorm()])
    said = capsys.readouterr().out
    assert all(f"WARNING: {key} has no effect" in said for key in config)
    of_step = "no effect of function, GradientNorm: the step does not call"
    assert said.count("WARNING: ") == (3 if make is models.classifier else 4)
    assert (of_step in said) == (make is models.own_step)


def test_fit_again_and_after_compile() -> None:
    trainer = held()
    with pytest.raises(ConfigError, match="steps_per_epoch must be at least 1"):
        trainer.fit(epochs=3, steps_per_epoch=0)
    first, second = (keras.callbacks.EarlyStopping("loss", mode="max", patience=1) for _ in range(2))
    trainer.fit(epochs=2, verbose=0, callbacks=[first])
    history = trainer.fit(verbose=0, callbacks=[second])
    assert first.stopped_epoch == 1 and len(history.history["loss"]) == 1
    assert trainer.global_step == 6  # a failed call does not count
    trainer.keras_model.compile(trainer.keras_model.optimizer, "mae", metrics=["mae"])
    with pytest.raises(ModelError, match="classifier was compiled again"):
        trainer.fit(verbose=0)


def test_lists_of_callbacks(tmp_path: Path) -> None:
    seen: list[str] = []

    def note(what: str) -> keras.callbacks.Callback:
        return keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(what))

    for epochs, callbacks in ((1, note("alone")), (2, [note("first"), [note("second")]])):
        trainer = KerasTrainer(made(classifier), experiment=tmp_path)
        trainer.fit(X, Y, epochs=epochs, verbose=0, callbacks=callbacks)
    assert trainer.run.checkpoint is not None and seen == ["alone", "first", "second"]


def test_backup_and_restore_is_refused(tmp_path: Path) -> None:
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    KerasTrainer(classifier()).fit(X, Y, verbose=0, callbacks=[backup])
    with pytest.raises(CallbackError, match="leave out BackupAndRestore"):
        KerasTrainer(classifier(), experiment=tmp_path / "run").fit(X, Y, verbose=0, callbacks=[backup])


def test_rerun_after_early_stopping(tmp_path: Path) -> None:
    weights, histories = [], []
    for _ in range(2):
        model = made(classifier)
        stopping = keras.callbacks.EarlyStopping("loss", mode="max", patience=2, restore_best_weights=True)
        history = KerasTrainer(model, experiment=tmp_path).fit(X, Y, epochs=20, verbose=0, callbacks=[stopping])
        weights.append(model.get_weights())
        histories.append((history.history, history.epoch))
    assert histories[0] == histories[1] and 2 <= len(histories[0][1]) < 20
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_printed_loss_is_the_mean_over_the_epoch() -> None:
    trainer = KerasTrainer(classifier())
    history = trainer.fit(X, Y, epochs=3, batch_size=8)
    assert [value for _, value in trainer.monitors.history("trn/loss")] == pytest.approx(history.history["loss"])


def test_verbose_0_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    KerasTrainer(classifier(), experiment=tmp_path / "run").fit(X, Y, verbose=0)
    assert capsys.readouterr().out == ""
    assert "KerasTrainer" in (tmp_path / "run" / "train.log").read_text()


def test_overridden_make_train_function_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    class Own(keras.Model):  # type: ignore[misc]
        def make_train_function(self, force: bool = False) -> Any:
            return super().make_train_function(force)

    KerasTrainer(classifier(Own), (X, Y))
    assert "WARNING: make_train_function of classifier is not called" in capsys.readouterr().out
