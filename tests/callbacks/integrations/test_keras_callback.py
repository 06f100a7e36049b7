"""A Keras callback is called as `fit` calls it, stops the run, and goes on after a resume."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    assert trainer.global_step == 6 and trainer.run.stopped_by == "EarlyStopping asked for it"
    assert run(stopping(), steps=20, experiment=tmp_path / "run").global_step == 6


@ALLOWED
@pytest.mark.parametrize("patience", [1, 9])
def test_weights_that_are_put_back_at_the_end_are_not_gone_on_from(patience: int, tmp_path: Path) -> None:
    """Whether the run has come to its end or is given more patience, after which no epoch is better than the first."""

    def trained(epochs: int, patience: int, directory: str) -> KerasTrainer:
        stopping = keras.callbacks.EarlyStopping("loss", mode="max", patience=patience, restore_best_weights=True)
        trainer = KerasTrainer(line(), data(), experiment=tmp_path / directory)
        trainer.train([KerasCallback(stopping), SaveOnExit()], max_epoch=epochs)
        return trainer

    trained(4, patience, "parts")
    resumed, whole = trained(6, 9, "parts"), trained(6, 9, "whole")
    said = "resumed at step 12; data: iterator" if patience == 9 else "resumed at step 6; data: iterator"
    assert resumed.run.resume_line() == said and resumed.global_step == 18
    checkpoints = [trainer.run.checkpoints.newest() for trainer in (resumed, whole)]
    mine, theirs = ({name: checkpoint.variables()[name] for name in whole.variables} for checkpoint in checkpoints)
    for name, value in theirs.items():
        np.testing.assert_array_equal(mine[name], value)


def test_state_goes_on(tmp_path: Path) -> None:
    class Recent(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.pair, self.all, self.last = (1, 2), [], np.zeros(2)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.all.append(batch)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.all.append(f"epoch {epoch}")
            self.last = self.last + epoch

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
    assert "changed" not in trainer.run.resume_line() and parts.last.tolist() == whole.last.tolist()
    assert (tmp_path / "parts.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


@dataclass
class Count:
    """Changes inside, and nobody can tell how to save it."""

    number: int = 0


class Holder(keras.callbacks.Callback):
    """Has a value and changes it at each epoch: to what `change` returns, or inside where that is None."""

    def __init__(self, value: Any, change: Callable[[Any], Any] = lambda value: None) -> None:
        super().__init__()
        self.value, self.change = value, change

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        changed = self.change(self.value)
        self.value = self.value if changed is None else changed


class Interrupt(Callback):
    """Presses Ctrl-C at a step, or at the end of the epoch that it ends."""

    def __init__(self, step: int, *, at_epoch: bool) -> None:
        self.step, self.at_epoch = step, at_epoch

    def _press(self, at_epoch: bool) -> None:
        if self.trainer.global_step == self.step and at_epoch is self.at_epoch:
            signal.raise_signal(signal.SIGINT)

    def trigger_step(self) -> None:
        self._press(at_epoch=False)

    def trigger_epoch(self) -> None:
        self._press(at_epoch=True)


@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize(("step", "at_epoch"), [(3, False), (4, False), (4, True)])
@pytest.mark.parametrize("first", [False, True])
def test_a_stop_amid_the_callbacks_costs_no_hook(
    tmp_path: Path, first: bool, step: int, at_epoch: bool, batches: bool
) -> None:
    class Notes(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[Any] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.calls.append(("epoch begins", epoch))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.calls.append(("epoch ends", epoch))

    class Batches(Notes):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.calls.append(("batch begins", batch))

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.calls.append(("batch ends", batch))

    whole, begun, parts = ((Batches if batches else Notes)() for _ in range(3))
    run(whole)
    stop = Interrupt(step, at_epoch=at_epoch)
    with pytest.raises(KeyboardInterrupt):
        run(*([stop, begun] if first else [begun, stop]), experiment=tmp_path / "run")
    run(parts, Interrupt(0, at_epoch=False), experiment=tmp_path / "run")
    assert parts.calls == whole.calls


def content(value: Any) -> Any:
    """What two values are compared by."""
    return type(value), repr(value)


def resumed(tmp_path: Path, made: Callable[[], Holder]) -> tuple[Holder, Holder, str]:
    """A callback of a whole run, that of one in two parts, and how the second part began."""
    whole, second = made(), made()
    run(whole, steps=7)
    run(made(), steps=3, experiment=tmp_path / "run")
    line = run(second, steps=7, experiment=tmp_path / "run").run.resume_line()
    return whole, second, line


SAVED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "tuple": (tuple, lambda value: (*value, len(value))),
    "float32": (lambda: np.float32(0.1), lambda value: value * 1.1 + 0.1),
    "not a number": (lambda: 0.0, lambda value: value + float("inf")),
    "array": (lambda: np.zeros((2, 3), np.int8, order="F"), lambda value: value + np.int8(1)),
    "array, changed inside": (lambda: np.zeros(2), lambda value: np.add(value, 1, out=value)),
    "texts": (lambda: np.array(["a"]), lambda value: np.append(value, "bc")),
    "nested": (dict, lambda value: {**value, len(value): [(1, np.float32(2)), {"a": None}, np.ones(2)]}),
}


@pytest.mark.parametrize("kind", SAVED)
def test_what_can_be_saved_exactly_comes_back_with_its_type(tmp_path: Path, kind: str) -> None:
    value, change = SAVED[kind]
    whole, second, line = resumed(tmp_path, lambda: Holder(value(), change))
    assert "changed" not in line
    assert content(second.value) == content(whole.value) != content(value())


LOST: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "dataclass": (Count, lambda value: Count(value.number + 1)),
    "set": (lambda: {1, 2}, lambda value: {*value, len(value) + 1}),
    "large": (lambda: np.zeros(1 << 21), lambda value: value + 1),
    "large together": (lambda: [np.zeros(1 << 18)] * 8, lambda value: [part + 1 for part in value]),
    "tensor": (lambda: tf.constant(1.5), lambda value: value * 2),
    "lambda": (lambda: len, lambda value: lambda: 0),
}


@pytest.mark.parametrize("kind", LOST)
def test_what_cannot_be_saved_is_named(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    value, change = LOST[kind]
    resumed(tmp_path, lambda: Holder(value(), change))
    assert "WARNING: the checkpoint does not hold Holder.value" in capsys.readouterr().out


@pytest.mark.parametrize(
    "value", [Count(), len, keras.losses.MeanSquaredError(), {1, 2}], ids=["object", "function", "loss", "set"]
)
def test_of_what_stays_there_is_no_warning(value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resumed(tmp_path, lambda: Holder(value))
    assert "WARNING" not in capsys.readouterr().out


@ALLOWED
def test_what_the_checkpoint_holds_anyway_is_no_reason(tmp_path: Path) -> None:
    def part(steps: int) -> KerasTrainer:
        model = line()
        model.compile(keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 9)), "mse", metrics=["mae"])
        trainer = KerasTrainer(model, data(), experiment=tmp_path / "run")
        held = [model, model.optimizer, model.layers[0], model.layers[0].kernel, trainer, model.metrics]
        held += [model.layers[0].kernel.value, model.fit, {"inside": model}]
        own = [keras.callbacks.EarlyStopping("loss", restore_best_weights=True, patience=9), keras.callbacks.History()]
        own += [keras.callbacks.TensorBoard(tmp_path / "board")]
        own += [keras.callbacks.ModelCheckpoint(tmp_path / "a.weights.h5", save_weights_only=True)]
        wrapped = [KerasCallback(Holder(value), state_key=str(number)) for number, value in enumerate(held)]
        trainer.train([*wrapped, *map(KerasCallback, own), SaveOnExit()], max_steps=steps)
        return trainer

    part(4)
    assert "changed" not in part(9).run.resume_line()


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
    with pytest.raises(CallbackError, match="one Keras callback, not a CallbackList"):
        KerasCallback(keras.callbacks.CallbackList([Hooks()]))
    with pytest.raises(CallbackError, match="ModelCheckpoint asks for the save of a Keras model, which Measured has"):
        run(keras.callbacks.ModelCheckpoint(tmp_path / "a.keras"))
    two = [keras.callbacks.LambdaCallback(), keras.callbacks.LambdaCallback()]
    with pytest.raises(CallbackError, match="give one of them another state_key"):
        run(*two)
    run(KerasCallback(two[0]), KerasCallback(two[1], state_key="second"))
