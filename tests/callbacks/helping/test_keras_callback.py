"""A Keras callback is called as `fit` calls it, stops the run, and goes on after a resume."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import KerasTrainer
from prototrain.callbacks import Callback, KerasCallback, SaveOnExit, Validation
from prototrain.errors import CallbackError
from tests.tiny import CountingTrainer

X = np.linspace(0, 1, 12, dtype=np.float32)[:, None]
# Keras's own: it asks variables for arrays as NumPy 1 did.
ALLOWED = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def line() -> keras.Model:
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, name="dense")], name="line")
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def data() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, 2 * X)).batch(4)


class Hooks(keras.callbacks.Callback):
    """Notes every hook with its number and the names in its logs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []


def noting(hook: str) -> Any:
    def note(self: Hooks, *arguments: Any, logs: Any = None) -> None:
        number = [argument for argument in arguments if isinstance(argument, int)]
        self.calls.append((hook, *number))

    return note


for kind in ("train", "epoch", "train_batch", "test", "test_batch"):
    for end in ("begin", "end"):
        setattr(Hooks, f"on_{kind}_{end}", noting(f"on_{kind}_{end}"))


class Measured(CountingTrainer):
    """Has something to validate, and no TensorFlow in it."""

    def evaluate(self, dataset: str, batches: int = 0) -> Mapping[str, float]:
        return {"loss": max(1.0, 5.0 - self.global_step)}


def run(*callbacks: Any, steps: int = 6, experiment: Path | None = None) -> Measured:
    trainer = Measured(experiment=experiment)
    wrapped = [
        KerasCallback(callback) if isinstance(callback, keras.callbacks.Callback) else callback
        for callback in callbacks
    ]
    saving = [] if experiment is None else [SaveOnExit()]
    trainer.train([Validation(), *wrapped, *saving], max_steps=steps, steps_per_epoch=2)
    return trainer


def test_hooks_are_called_as_in_fit() -> None:
    there, here = Hooks(), Hooks()
    line().fit(data(), validation_data=data(), epochs=2, verbose=0, shuffle=False, callbacks=[there])
    KerasTrainer(line(), data(), validation=data()).train([Validation(), KerasCallback(here)], max_epoch=2)
    assert here.calls == there.calls and ("on_test_batch_end", 2) in here.calls


@ALLOWED
def test_a_callback_that_changes_the_model_does_what_it_does_in_fit(tmp_path: Path) -> None:
    def callbacks(where: str) -> list[keras.callbacks.Callback]:
        return [
            keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=10.0),
            keras.callbacks.EarlyStopping("val_loss", patience=2, min_delta=10.0, restore_best_weights=True),
            keras.callbacks.ModelCheckpoint(tmp_path / f"{where}.weights.h5", save_weights_only=True),
            keras.callbacks.TensorBoard(tmp_path / where),
            keras.callbacks.CSVLogger(tmp_path / f"{where}.csv"),
        ]

    there, here = line(), line()
    there.fit(data(), validation_data=data(), epochs=9, verbose=0, shuffle=False, callbacks=callbacks("there"))
    trainer = KerasTrainer(here, data(), validation=data())
    trainer.train([Validation(), *map(KerasCallback, callbacks("here"))], max_epoch=9)
    assert trainer.global_step == 9  # three epochs of nine
    assert float(here.optimizer.learning_rate.numpy()) == float(there.optimizer.learning_rate.numpy()) < 0.01
    for mine, theirs in zip(here.weights, there.weights, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-5)
    assert (tmp_path / "here" / "validation").is_dir() and (tmp_path / "here.weights.h5").exists()
    assert len((tmp_path / "here.csv").read_text().splitlines()) == 4


def test_only_a_callback_with_batch_hooks_asks_for_every_step(tmp_path: Path) -> None:
    seen = []
    by_step = {
        keras.callbacks.History(): None,
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None): None,
        keras.callbacks.ModelCheckpoint(tmp_path / "a.keras", save_freq="epoch"): None,
        keras.callbacks.ModelCheckpoint(tmp_path / "a.keras", save_freq=5): 4,
        keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append((batch, logs["loss"]))): 4,
        keras.callbacks.TerminateOnNaN(): 4,
    }
    for callback, expected in by_step.items():
        wrapped = KerasCallback(callback)
        wrapped.trainer = Measured()
        wrapped.setup()
        assert wrapped.next_step(3) == expected
    run(list(by_step)[4])
    assert seen == [(step % 2, 1 / (step + 1)) for step in range(6)]


def test_logs_hold_what_was_validated_in_the_epoch_and_test_hooks_run_around_it() -> None:
    history, hooks = keras.callbacks.History(), Hooks()
    run(history, hooks)
    assert history.history == {"loss": [1 / 2, 1 / 4, 1 / 6], "val_loss": [3.0, 1.0, 1.0]}
    tested = [call for call in hooks.calls if "test" in call[0]]
    assert tested == [("on_test_begin",), ("on_test_end",)] * 3


def test_a_callback_stops_the_run_and_it_stays_stopped(tmp_path: Path) -> None:
    def stopping() -> keras.callbacks.Callback:
        return keras.callbacks.EarlyStopping("val_loss", patience=1, mode="min")

    trainer = run(stopping(), steps=20, experiment=tmp_path / "run")
    assert trainer.global_step == 6 and trainer.storage.stopped_by == "EarlyStopping asked for it"
    assert run(stopping(), steps=20, experiment=tmp_path / "run").global_step == 6


def test_state_goes_on_and_what_is_lost_is_said(tmp_path: Path) -> None:
    class Recent(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.pair, self.all, self.last = (1, 2), [], deque(maxlen=3)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.all.append(batch)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.all.append(f"epoch {epoch}")
            self.last.append(epoch)

    def best(patience: int) -> keras.callbacks.EarlyStopping:
        return keras.callbacks.EarlyStopping("val_loss", patience=patience, min_delta=0.5, mode="min")

    def rows(name: str) -> keras.callbacks.CSVLogger:
        return keras.callbacks.CSVLogger(tmp_path / f"{name}.csv")

    whole = Recent()
    run(best(9), whole, rows("whole"), steps=7)
    run(best(1), Recent(), rows("parts"), steps=3, experiment=tmp_path / "run")
    parts, stopping = Recent(), best(9)
    trainer = run(stopping, parts, rows("parts"), steps=7, experiment=tmp_path / "run")
    assert parts.all == whole.all and parts.pair == (1, 2)
    # A sign turned once must not be turned back, and the patience is that of the present list.
    assert (stopping.wait, stopping.best, stopping.min_delta, stopping.patience) == (1, 1.0, -0.5, 9)
    assert trainer.storage.resume_line().endswith("because no checkpoint can hold Recent.last")
    assert (tmp_path / "parts.csv").read_text() == (tmp_path / "whole.csv").read_text()


def test_the_end_is_told_only_when_it_is_the_end() -> None:
    class Broken(Callback):
        def trigger_epoch(self) -> None:
            raise ValueError("on purpose")

    ended = Hooks()
    with pytest.raises(ValueError, match="on purpose"):
        run(ended, Broken())
    assert ended.calls[0] == ("on_train_begin",) and ("on_train_end",) not in ended.calls


def test_what_cannot_work_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(CallbackError, match="takes a Keras callback, such as"):
        KerasCallback(Validation())  # type: ignore[arg-type]
    with pytest.raises(CallbackError, match="ModelCheckpoint asks for the save of a Keras model, which Measured has"):
        run(keras.callbacks.ModelCheckpoint(tmp_path / "a.keras"))
    two = [keras.callbacks.LambdaCallback(), keras.callbacks.LambdaCallback()]
    with pytest.raises(CallbackError, match="give one of them another state_key"):
        run(*two)
    run(KerasCallback(two[0]), KerasCallback(two[1], state_key="second"))
