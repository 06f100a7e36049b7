"""`KerasCallback`: Keras callbacks are called as in `fit`, stop the run, and are resumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import KerasTrainer
from prototrain.callbacks import KerasCallback, SaveOnExit, Validation
from prototrain.errors import CallbackError
from tests.keras.models import made
from tests.tiny import CountingTrainer, failing, values

X = np.linspace(0, 1, 12, dtype=np.float32)[:, None]
# Keras's own: it asks variables for arrays as NumPy 1 did.
ALLOWED = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def line() -> keras.Model:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, name="dense")], name="line")
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def data() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, 2 * X)).batch(4)


class Hooks(keras.callbacks.Callback):  # type: ignore[misc]
    """Records every hook with its number and the names in its logs."""

    def __init__(self, *hooks: str) -> None:
        super().__init__()
        self.calls: list[Any] = []
        for hook in hooks:
            setattr(self, hook, self._noting(hook))

    def _noting(self, hook: str) -> Callable[..., None]:
        def note(number: Any = None, logs: Any = None) -> None:
            assert isinstance(number if logs is None else logs, dict), hook  # Keras never passes None
            self.calls.append((hook, number if isinstance(number, int) else None))

        return note


EPOCHS = ("on_epoch_begin", "on_epoch_end")
BATCHES = ("on_train_batch_begin", "on_train_batch_end")
TESTS = ("on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end")
ALL = ("on_train_begin", *EPOCHS, *BATCHES, *TESTS, "on_train_end")


class Measured(CountingTrainer):
    """An evaluation without TensorFlow."""

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


@ALLOWED
def test_hooks_and_model_changes_equal_fit(tmp_path: Path) -> None:
    def callbacks(where: str) -> list[keras.callbacks.Callback]:
        return [
            Hooks(*ALL),
            keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=10.0),
            keras.callbacks.EarlyStopping("val_loss", patience=2, min_delta=10.0, restore_best_weights=True),
            keras.callbacks.ModelCheckpoint(tmp_path / f"{where}.weights.h5", save_weights_only=True),
            keras.callbacks.TensorBoard(tmp_path / where),
            keras.callbacks.CSVLogger(tmp_path / f"{where}.csv"),
        ]

    there, here = made(line), made(line)
    listed, mine = callbacks("there"), callbacks("here")
    there.fit(data(), validation_data=data(), epochs=9, verbose=0, shuffle=False, callbacks=listed)
    trainer = KerasTrainer(here, data(), validation=data())
    trainer.train([Validation(), *map(KerasCallback, mine)], max_epoch=9)
    assert trainer.global_step == 9  # three epochs of nine
    assert mine[0].calls == listed[0].calls and ("on_test_batch_end", 2) in mine[0].calls
    assert float(here.optimizer.learning_rate.numpy()) == float(there.optimizer.learning_rate.numpy()) < 0.01
    for one, other in zip(here.weights, there.weights, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5)
    assert (tmp_path / "here" / "validation").is_dir() and (tmp_path / "here.weights.h5").exists()
    assert len((tmp_path / "here.csv").read_text().splitlines()) == 4


class StopAt(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_training |= batch == self.batch


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_stop_within_an_epoch_ends_it(batch: int) -> None:
    """As in Keras, all callbacks see the end of the epoch."""

    def callbacks() -> list[keras.callbacks.Callback]:
        return [StopAt(batch), Hooks(*ALL)]

    (stopper, hooks), (mine, own) = callbacks(), callbacks()
    there = made(line).fit(data(), epochs=4, verbose=0, shuffle=False, callbacks=[stopper, hooks])
    here = KerasTrainer(made(line)).fit(data(), epochs=4, verbose=0, callbacks=[mine, own])
    assert own.calls == hooks.calls and ("on_epoch_end", 0) in own.calls
    assert {name: pytest.approx(losses, rel=1e-5) for name, losses in there.history.items()} == here.history


def test_only_batch_hooks_ask_for_every_step(tmp_path: Path) -> None:
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


@ALLOWED
def test_resume_ignores_weights_restored_at_the_end(tmp_path: Path) -> None:
    """Not after the end of the run, and not with more patience; no later epoch is better than the first."""

    def trained(epochs: int, patience: int, directory: str) -> KerasTrainer:
        stopping = keras.callbacks.EarlyStopping("loss", mode="max", patience=patience, restore_best_weights=True)
        trainer = KerasTrainer(made(line), data(), experiment=tmp_path / directory)
        trainer.train([KerasCallback(stopping), SaveOnExit()], max_epoch=epochs)
        return trainer

    whole = trained(6, 9, "whole")
    for patience, resumed_at in ((1, 6), (9, 12)):
        trained(4, patience, f"parts {patience}")
        resumed = trained(6, 9, f"parts {patience}")
        assert resumed.run.start_row() == f"resumed at step {resumed_at}; data: iterator"
        assert resumed.global_step == 18
        mine, theirs = (trainer.run.checkpoints.newest().variables() for trainer in (resumed, whole))
        for name in whole.variables:
            np.testing.assert_array_equal(mine[name], theirs[name])


@ALLOWED
def test_averages_of_an_earlier_call_do_not_replace_restored_weights(tmp_path: Path) -> None:
    """A script with two calls is resumed in the second one."""

    def averaged() -> keras.Model:
        model = line()
        model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9), "mse")
        return model

    def trained(directory: str, *epochs: int) -> KerasTrainer:
        trainer = KerasTrainer(made(averaged), data(), experiment=tmp_path / directory)
        for until in epochs:
            trainer.train([SaveOnExit()], max_epoch=until)
        return trainer

    whole = trained("whole", 2, 4)
    trained("parts", 2, 3)
    resumed = trained("parts", 2, 4)
    assert resumed.global_step == whole.global_step == 12
    assert values(resumed) == values(whole)


def test_resume_within_an_epoch(tmp_path: Path) -> None:
    def best(patience: int) -> keras.callbacks.EarlyStopping:
        return keras.callbacks.EarlyStopping("val_loss", patience=patience, min_delta=0.5, mode="min")

    def rows(name: str) -> keras.callbacks.CSVLogger:
        return keras.callbacks.CSVLogger(tmp_path / f"{name}.csv")

    whole, begun, parts = (Hooks(*EPOCHS, *BATCHES) for _ in range(3))
    run(best(9), whole, rows("whole"), steps=7)
    run(best(1), begun, rows("parts"), steps=3, experiment=tmp_path / "run")
    stopping = best(9)
    run(stopping, parts, rows("parts"), steps=7, experiment=tmp_path / "run")
    assert parts.calls == whole.calls and begun.calls == whole.calls[: len(begun.calls)]
    # A restored sign must not be inverted again, and the patience comes from the current list.
    assert (stopping.wait, stopping.best, stopping.min_delta, stopping.patience) == (1, 1.0, -0.5, 9)
    assert (tmp_path / "parts.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


@pytest.mark.parametrize(("hook", "step"), [("trigger_step", 3), ("trigger_step", 4), ("trigger_epoch", 4)])
@pytest.mark.parametrize("first", [False, True])
def test_stop_between_callbacks_skips_no_hook(tmp_path: Path, first: bool, hook: str, step: int) -> None:
    whole, begun, parts = (Hooks(*EPOCHS, *BATCHES) for _ in range(3))
    run(whole)
    stop = failing(hook, step, None)
    with pytest.raises(KeyboardInterrupt):
        run(*([stop, begun] if first else [begun, stop]), experiment=tmp_path / "run")
    run(parts, failing(hook, 0, None), experiment=tmp_path / "run")
    assert parts.calls == whole.calls


class Holder(keras.callbacks.Callback):  # type: ignore[misc]
    """Changes its attributes at each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.pair: tuple[int, ...] = ()
        self.inside = np.zeros(2)
        self.nested: dict[int, Any] = {}
        self.count = SimpleNamespace(number=0)  # not plain: it starts from its initial value

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.pair = (*self.pair, epoch)
        self.inside += 1
        self.nested[epoch] = [(1, np.float32(2)), {"a": None}]
        self.count.number += 1


def test_plain_attributes_are_saved(tmp_path: Path) -> None:
    whole, parts = Holder(), Holder()
    run(whole, steps=8)
    run(Holder(), steps=4, experiment=tmp_path)
    run(parts, steps=8, experiment=tmp_path)
    for name in ("pair", "inside", "nested"):
        one, other = getattr(whole, name), getattr(parts, name)
        assert (type(one), repr(one)) == (type(other), repr(other)), name
    assert (parts.count.number, whole.count.number) == (2, 4)


def test_errors() -> None:
    with pytest.raises(CallbackError, match="is not a callback of Keras"):
        KerasCallback(Validation())  # type: ignore[arg-type]
    with pytest.raises(CallbackError, match="give one of them another state_key"):
        run(*(keras.callbacks.LambdaCallback() for _ in "ab"))


def test_on_train_end_is_called_once() -> None:
    ended = Hooks(*ALL)
    with pytest.raises(ValueError, match="on purpose"):
        run(ended, failing("trigger_epoch", 2, ValueError("on purpose")))
    assert ended.calls[0] == ("on_train_begin", None) and ("on_train_end", None) not in ended.calls
