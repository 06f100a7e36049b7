"""Compiled calls of many steps: equal results, correct counts, and consistent state after failures."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import Callback, SimpleTrainer, StopTraining, SyncReplicatedTrainer
from prototrain.callbacks import JSONWriter, LearningRate, ModelSaver, SaveOnExit, StopOnNaN, Summaries, Validation
from prototrain.errors import DataError, ModelError, NonFiniteError, StepError
from tests.tiny import (
    At,
    CountingTrainer,
    Losses,
    Recorder,
    classifier,
    rows,
    tiny_arrays,
    tiny_build,
    tiny_datasets,
    tiny_model,
    tiny_trainer,
    values,
)
from tests.trainers.test_replicated import plain_build


@pytest.fixture(scope="module")
def reference() -> dict[str, bytes]:
    """The variables after 20 steps in as few calls as possible."""
    trainer = tiny_trainer()
    trainer.train([LearningRate(rate), StopOnNaN()])
    return values(trainer)


def rate(step: Any) -> Any:
    return 0.01 * 0.9 ** (step / 10)


def test_callbacks_do_not_change_results(reference: dict[str, bytes]) -> None:
    recorders = [Recorder().every(steps=7), Recorder().every(seconds=1e-9)]
    trainer = tiny_trainer()
    trainer.train([LearningRate(rate), StopOnNaN(), *recorders, Validation().every(steps=4)])
    assert values(trainer) == reference


def test_single_steps_equal_long_calls() -> None:
    def build(inputs: Any, train_phase: bool) -> Any:
        """A network with convolutions and recurrence."""
        x = tf.tile(tf.reshape(inputs["x"], [-1, 2, 2, 1]), [1, 4, 4, 1])
        x = keras.layers.MaxPooling2D(2, name="max")(keras.layers.Conv2D(4, 3, activation="relu", name="conv")(x))
        words = tf.cast(tf.abs(inputs["x"]) * 10, tf.int32) % 7
        read = keras.layers.LSTM(5, name="lstm")(keras.layers.Embedding(7, 3, name="embedding")(words))
        x = tf.concat([keras.layers.GlobalAveragePooling2D(name="pool")(x), read], 1)
        return tiny_build({**inputs, "x": x}, train_phase)

    ends = []
    for callbacks in ([], [Losses()]):
        trainer = tiny_trainer(build=build, model__accumulate_steps=2, model__clip_gradients__global_norm=1.0)
        trainer.train([LearningRate(rate), StopOnNaN(), *callbacks], max_steps=10)
        ends.append(values(trainer))
    assert ends[0] == ends[1]


def test_resumed_run_is_exact(reference: dict[str, bytes], tmp_path: Path) -> None:
    for end in (7, 20):
        trainer = tiny_trainer(tmp_path)
        trainer.train([LearningRate(rate), StopOnNaN(), SaveOnExit()], max_steps=end, steps_per_epoch=5)
    assert values(trainer) == reference


def test_one_trace_and_outputs_of_the_last_step() -> None:
    phases: list[bool] = []

    def build(inputs: Any, train_phase: bool) -> Any:
        phases.append(train_phase)
        return tiny_build(inputs, train_phase)

    trainer, losses = tiny_trainer(build=build, model__weight_decay__value=0.1), Losses()
    assert phases == [True, True]  # eagerly on a batch, which creates the variables, and traced
    trainer.train([losses, StopOnNaN()], max_steps=6)
    assert phases == [True, True, True]
    assert list(trainer.outputs) == ["loss", "accuracy", "loss_l2", "loss_total", "learning_rate"]
    assert trainer.outputs["loss"] == losses.by_step[6]
    assert trainer.outputs["loss_total"] == pytest.approx(trainer.outputs["loss"] + trainer.outputs["loss_l2"])
    assert trainer.outputs["loss_l2"] > 0


def poisoned(step: int, *, gradient_only: bool = False, build: Any = tiny_build) -> Any:
    """A build whose loss is infinite, or only the gradient of it NaN, for the batch of one step."""

    def poisoned_build(inputs: Any, train_phase: bool) -> Any:
        net = build(inputs, train_phase)
        bad = tf.reduce_any(tf.equal(inputs["number"], step - 1)) if train_phase else tf.constant(False)
        if gradient_only:
            spoil = tf.custom_gradient(lambda loss: (loss, lambda slope: tf.where(bad, float("nan"), slope)))
            net.loss = spoil(net.loss)
        else:
            net.loss = tf.where(bad, np.inf, net.loss)
        return net

    return poisoned_build


def numbered_datasets() -> dict[str, tf.data.Dataset]:
    arrays = tiny_arrays(160)
    numbers = {"number": np.repeat(np.arange(20), 8)}
    return {"trn": tf.data.Dataset.from_tensor_slices({**arrays, **numbers}).batch(8)}


@functools.cache
def unpoisoned(steps: int) -> dict[str, bytes]:
    """The variables after some steps on the numbered data."""
    trainer = tiny_trainer(datasets=numbered_datasets)
    trainer.train([LearningRate(rate)], max_steps=steps)
    return values(trainer)


class AllLosses(Callback):
    """Stores the loss of each step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def after_steps(self, scalars: Any) -> None:
        self.losses += scalars["loss"]


@pytest.mark.parametrize("towers", [1, 2])
def test_losses_of_all_steps_of_a_call_reach_the_host(towers: int) -> None:
    def bad(inputs: Any, train_phase: bool) -> Any:
        net = poisoned(8)(inputs, train_phase)
        return {**net, "count": tf.shape(inputs["x"])[0]}  # an integer, which is packed with float64

    all_losses, losses = AllLosses(), Losses()
    for callback in (all_losses, losses):
        model = tiny_model(datasets=numbered_datasets, build=bad)
        trainer = SimpleTrainer(model) if towers == 1 else SyncReplicatedTrainer(model, f"cpu:{towers}")
        with pytest.raises(NonFiniteError, match="step 8"):
            trainer.train([callback, StopOnNaN()])
        assert trainer.outputs["count"] == 8 / towers and np.isfinite(trainer.outputs["loss"])
    assert len(all_losses.losses) == 7
    np.testing.assert_allclose(all_losses.losses, list(losses.by_step.values()), rtol=1e-6)


class Ends(AllLosses):
    """Raises an error with the scalars of a step."""

    def __init__(self, step: int, error: Exception) -> None:
        super().__init__()
        self.step, self.error = step, error

    def after_steps(self, scalars: Any) -> None:
        super().after_steps(scalars)
        if len(self.losses) >= self.step:
            raise self.error


@pytest.mark.parametrize("make", [tiny_trainer, CountingTrainer])
def test_callback_that_stops_or_fails_in_after_steps(make: Any, tmp_path: Path) -> None:
    def run(ends: Any, steps: int, name: str) -> list[int]:
        late = AllLosses()
        trainer = make(experiment=tmp_path / name)
        callbacks = [ends, late, Summaries().every(steps=5), JSONWriter(), SaveOnExit()]
        try:
            trainer.train(callbacks, max_steps=steps, steps_per_epoch=100)
        finally:
            assert len(late.losses) == trainer.global_step - trainer.run.began_at
        return [row["step"] for row in rows(tmp_path / name)]

    assert run(Ends(10, StopTraining("enough")), 20, "stops") == [5, 10]
    with pytest.raises(ZeroDivisionError):
        run(Ends(10, ZeroDivisionError()), 20, "fails")
    assert run(AllLosses(), 20, "fails") == [5, 10, 15, 20]  # the step's other callbacks run after the resume


@pytest.mark.parametrize(
    ("gradient_only", "alone", "position"),
    [(False, False, "iterator"), (True, False, "iterator"), (True, True, "iterator"), (True, False, "replay")],
)
def test_non_finite_step_changes_nothing(
    gradient_only: bool, alone: bool, position: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"datasets": numbered_datasets, "trainer__data_position": position}  # a replay cannot undo a call
    trainer = tiny_trainer(tmp_path, build=poisoned(8, gradient_only=gradient_only), **options)
    with pytest.raises(NonFiniteError, match=r"not finite in step 8 \(.*loss.*its update was not applied"):
        trainer.train([LearningRate(rate), StopOnNaN(), SaveOnExit(), *([Losses()] if alone else [])])
    assert ("repeating the steps" in capsys.readouterr().out) == (position == "iterator" and not alone)
    assert trainer.global_step == 7
    assert values(trainer) == unpoisoned(7)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-0000000007"]
    # The saved position is right before the bad batch: with repaired data the run continues exactly.
    repaired = tiny_trainer(tmp_path, **options)
    repaired.train([LearningRate(rate)], max_steps=20)
    assert values(repaired) == unpoisoned(20)


class HidesNaN(keras.optimizers.SGD):  # type: ignore[misc]
    """An optimizer that replaces what is not finite by zero."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        gradient = tf.where(tf.math.is_finite(gradient), gradient, 0.0)
        super().update_step(gradient, variable, learning_rate)


def hides_nan(variable: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.math.is_finite(variable), variable, 0.0)


class ResetsWeights(SimpleTrainer):
    """Assigns to its variables after each update."""

    def train_step(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
        outputs = super().train_step(inputs)
        for variable in [*self.trainable.values(), *self.optimizer.variables]:
            if variable.dtype == "float32":
                variable.assign(hides_nan(variable))
        return outputs


@classifier
def constrained(x: Any, train_phase: bool) -> Any:
    return keras.layers.Dense(2, kernel_constraint=hides_nan, bias_constraint=hides_nan, name="logits")(x)


@pytest.mark.parametrize(
    ("make", "build", "optimizer", "form"),
    [
        (SimpleTrainer, plain_build, HidesNaN(0.1), False),
        (SimpleTrainer, plain_build, HidesNaN(0.1), "loop"),
        (SimpleTrainer, constrained, keras.optimizers.SGD(0.1), False),
        (SimpleTrainer, constrained, keras.optimizers.RMSprop(0.1), "loop"),
        (ResetsWeights, plain_build, keras.optimizers.RMSprop(0.1), False),
        (SimpleTrainer, plain_build, keras.optimizers.Lion(0.1), False),
    ],
)
def test_non_finite_gradient_is_found_although_the_update_hides_it(
    make: Any, build: Any, optimizer: Any, form: Any
) -> None:
    def datasets() -> dict[str, tf.data.Dataset]:
        return {"trn": numbered_datasets()["trn"].unbatch().batch(8, drop_remainder=True)}

    new = functools.partial(type(optimizer).from_config, optimizer.get_config())
    options = {"model__jit_compile": form, "model__optimizer__method": new}
    trainer = make(tiny_model(build=poisoned(8, gradient_only=True, build=build), datasets=datasets, **options))
    with pytest.raises(NonFiniteError, match="step 8"):
        trainer.train([StopOnNaN()], max_steps=20)
    assert trainer.global_step == 7
    assert all(np.isfinite(variable).all() for variable in trainer.variables.values())


class Noisy(SimpleTrainer):
    """Adds noise from a generator that is part of the state."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.state["noise"] = self.noise = tf.random.Generator.from_seed(3)

    def train_step(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
        return super().train_step({**inputs, "x": inputs["x"] + self.noise.normal([8, 4])})


@pytest.mark.parametrize("alone", [False, True])
def test_non_finite_step_draws_no_random_numbers(alone: bool) -> None:
    trainer, good = Noisy(tiny_model(build=poisoned(8), datasets=numbered_datasets)), Noisy(tiny_model())
    with pytest.raises(NonFiniteError, match="step 8"):
        trainer.train([StopOnNaN(), *([Losses()] if alone else [])])
    good.train(max_steps=7)
    assert trainer.noise.state.numpy().tolist() == good.noise.state.numpy().tolist()


@pytest.mark.parametrize("method", ["msgd", "rmsprop", "lion"])
def test_single_steps_equal_long_calls_with_any_optimizer(method: str) -> None:
    found = []
    for callbacks in ([], [Losses()]):
        trainer = tiny_trainer(model__optimizer__method=method)
        trainer.train([LearningRate(rate), StopOnNaN(), *callbacks], max_steps=15)
        found.append(values(trainer))
    assert found[0] == found[1]


def test_non_finite_gradient_before_a_failed_read(tmp_path: Path) -> None:
    def datasets() -> dict[str, tf.data.Dataset]:
        def fail(batch: Any) -> Any:
            check = tf.debugging.assert_less(batch["number"], tf.constant(8, tf.int64), message="cannot be read")
            with tf.control_dependencies([check]):
                return tf.nest.map_structure(tf.identity, batch)

        return {"trn": numbered_datasets()["trn"].map(fail)}

    trainer = tiny_trainer(tmp_path, build=poisoned(8, gradient_only=True), datasets=datasets)
    with pytest.raises(NonFiniteError, match="step 8"):
        trainer.train([LearningRate(rate), StopOnNaN(), SaveOnExit()])
    assert values(trainer) == unpoisoned(7)


def test_failing_model_names_the_line_and_saves_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def build(inputs: Any, train_phase: bool) -> Any:
        """Has an assertion that fails for the batch of the sixth step."""
        net = tiny_build(inputs, train_phase)
        if train_phase:
            check = tf.debugging.assert_less(inputs["number"], tf.constant(5, tf.int64), message="too large")
            with tf.control_dependencies([check] if check is not None else []):
                net.loss = tf.identity(net.loss)
        return net

    trainer, losses = tiny_trainer(tmp_path, build=build, datasets=numbered_datasets), AllLosses()
    with pytest.raises(StepError, match=r"step 6 failed in the model: .*too large.* \(test_calls.py, line \d+\)$"):
        trainer.train([losses, StopOnNaN(), SaveOnExit()])
    assert trainer.global_step == 5
    assert len(losses.losses) == 5 and trainer.outputs["loss"] == losses.losses[-1]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["failed-0000000005"]
    assert "a resume continues from the start" in capsys.readouterr().out
    log = (tmp_path / "train.log").read_text()
    assert "{{node" in log and "Traceback" in log, "the whole text of TensorFlow's error is kept"


def test_failing_data_can_be_repaired(tmp_path: Path) -> None:
    file = tmp_path / "numbers.csv"
    good = [f"{x[0]},{x[1]},{x[2]},{x[3]},{y}" for x, y in zip(*tiny_arrays(160).values(), strict=True)]

    def datasets() -> dict[str, tf.data.Dataset]:
        def parse(line: tf.Tensor) -> dict[str, tf.Tensor]:
            *x, y = tf.io.decode_csv(line, [0.0, 0.0, 0.0, 0.0, 0])
            return {"x": tf.stack(x), "y": y}

        return {"trn": tf.data.TextLineDataset(str(file)).map(parse).batch(8)}

    file.write_text("\n".join([*good[:45], "0.5,x,0.5,0.5,1", *good[46:]]))
    trainer = SimpleTrainer(tiny_model(datasets=datasets), experiment=tmp_path)
    with pytest.raises(StepError, match=r"step 6 failed in the data: .*not a valid float"):
        trainer.train([SaveOnExit()])
    assert trainer.global_step == 5
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-0000000005"]
    file.write_text("\n".join(good))
    repaired, straight = tiny_trainer(tmp_path, datasets=datasets), tiny_trainer(datasets=datasets)
    for trainer in (repaired, straight):
        trainer.train([], max_steps=20)
    assert values(repaired) == values(straight)


def test_end_of_data_ends_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batches = iter([tiny_arrays(8)] * 10)  # can be read only once
    spec = {"x": tf.TensorSpec((8, 4), tf.float32), "y": tf.TensorSpec((8,), tf.int32)}
    shared = {"trn": tf.data.Dataset.from_generator(lambda: batches, output_signature=spec)}
    trainer, recorder = tiny_trainer(tmp_path, datasets=lambda: shared), Recorder()
    trainer.train([recorder.every(steps=100), SaveOnExit()], max_steps=50)
    # Two batches were read before training; the remaining ones are used.
    assert 0 < trainer.global_step < 10
    assert recorder.steps("trigger") == [trainer.global_step] == trainer.run.checkpoints.steps()
    assert "the training dataset ran out of data" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"datasets": lambda: {"vld": tiny_datasets()["vld"]}}, "'trn'"),
        ({"datasets": lambda: tiny_datasets()["trn"]}, "must return a dict"),
        ({"datasets": lambda: {"trn": tiny_datasets()["trn"].take(0)}}, "'trn' is empty"),
        ({"build": lambda inputs, _: None}, "must return a mapping"),
        ({"build": lambda inputs, _: {"logits": inputs["x"]}}, "must return 'loss'.*it returned logits"),
        ({"build": lambda inputs, _: {"loss": inputs["x"]}}, r"must return 'loss', a floating scalar.*8, 4"),
        ({"build": lambda inputs, _: {"loss": tf.reduce_sum(inputs["x"])}}, "does not depend on any trainable"),
    ],
)
def test_wrong_models(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError if "datasets" in parts else ModelError, match=words):
        tiny_trainer(**parts).train(max_steps=1)


def test_custom_train_step_is_compiled_and_guarded() -> None:
    class TwoUpdates(SimpleTrainer):
        """Updates with the gradient, and again with a constant that is NaN in step 5."""

        def train_step(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
            outputs = super().train_step(inputs)
            extra = tf.where(tf.equal(self.counter.begun, 4), float("nan"), 0.5)
            next(iter(self.trainable.values())).assign_add(extra * tf.ones([4, 6]))
            return {"loss": outputs["loss"] + extra}

    trainer = TwoUpdates(tiny_model())
    good: list[Any] = []
    with pytest.raises(NonFiniteError, match="step 5"):
        trainer.train([StopOnNaN(), At(4, lambda: good.append(values(trainer)))], max_steps=10)
    assert trainer.global_step == 4
    assert [values(trainer)] == good


class WithoutScalars(SimpleTrainer):
    def train_step(self, inputs: dict[str, Any]) -> dict[str, Any]:
        super().train_step(inputs)
        return {}


@pytest.mark.parametrize("form", [False, "loop"])
def test_step_without_scalars(form: bool | str) -> None:
    def datasets() -> dict[str, tf.data.Dataset]:
        return {"trn": tf.data.Dataset.from_tensor_slices(tiny_arrays()).batch(8, drop_remainder=True)}

    trainer, other = (
        kind(tiny_model(datasets=datasets, model__jit_compile=form)) for kind in (WithoutScalars, SimpleTrainer)
    )
    for one in (trainer, other):
        one.train([StopOnNaN(), Summaries().every(steps=4)], max_steps=8)
    assert trainer.outputs == {} and values(trainer) == values(other)


def test_custom_run_step_may_call_the_compiled_step(tmp_path: Path) -> None:
    class Wrapped(SimpleTrainer):
        def run_step(self) -> Any:
            outputs = super().run_step()
            if self.global_step == 8:
                raise ValueError("behind the compiled part of the step")
            return {"loss": outputs["loss"], "twice": 2 * outputs["loss"]}

    trainer, plain = Wrapped(tiny_model(), experiment=tmp_path), tiny_trainer()
    trainer.train(max_steps=7)
    plain.train(max_steps=7)
    assert values(trainer) == values(plain)
    assert trainer.global_step == 7 and trainer.outputs["twice"] == 2 * trainer.outputs["loss"]
    with pytest.raises(ValueError, match="behind the compiled part"):
        trainer.train([SaveOnExit()])
    assert not trainer.step_is_whole
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["failed-0000000008"]


class TwoOptimizers(SimpleTrainer):
    """Alternates two optimizers."""

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, **options)
        self.first = keras.optimizers.Adam(0.01)
        self.second = keras.optimizers.SGD(0.01, momentum=0.9)
        for name in ("first", "second"):
            self.register_optimizer(name, getattr(self, name), self.trainable.values())

    def train_step(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
        variables = list(self.trainable.values())
        for optimizer in (self.first, self.second):
            with tf.GradientTape() as tape:
                loss = self.build(inputs, True)["loss"]
            optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


class AddsWeight(SimpleTrainer):
    def build(self, inputs: dict[str, Any], train_phase: bool) -> Any:
        return {**super().build(inputs, train_phase), "loss_weight": tf.constant(8.0)}


class TakesTwoGradients(SimpleTrainer):
    def gradients(self, tape: tf.GradientTape, loss: tf.Tensor, variables: list[Any]) -> list[Any]:
        first, second = (super(TakesTwoGradients, self).gradients(tape, loss, variables) for _ in range(2))
        return [(one + other) / 2 for one, other in zip(first, second, strict=True)]


@pytest.mark.parametrize("make", [AddsWeight, TakesTwoGradients])
def test_trainer_that_takes_several_gradients(make: Any) -> None:
    trainers = [kind(tiny_model(model__weight_decay__value=0.1)) for kind in (SimpleTrainer, make)]
    for trainer in trainers:
        trainer.train(max_steps=5)
    np.testing.assert_allclose(trainers[1].outputs["loss"], trainers[0].outputs["loss"], rtol=1e-5)


def test_optimizers_of_a_subclass_are_saved(tmp_path: Path) -> None:
    straight = TwoOptimizers(tiny_model())
    straight.train(max_steps=12)
    TwoOptimizers(tiny_model(), experiment=tmp_path).train([SaveOnExit()], max_steps=5, steps_per_epoch=5)
    resumed = TwoOptimizers(tiny_model(), experiment=tmp_path)
    resumed.train([SaveOnExit()], max_steps=12, steps_per_epoch=5)
    assert "not bit-exact" not in resumed.run.start_row()
    assert values(resumed) == values(straight)
    assert "second/logits_kernel_0_momentum" in resumed.state


class Careless(SimpleTrainer):
    """Creates a variable while the step is traced."""

    def train_step(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
        if not hasattr(self, "extra"):
            self.extra = tf.Variable(0.0, name="extra")
        self.extra.assign_add(1.0)
        return super().train_step(inputs)


class OwnNetwork(SimpleTrainer):
    """Trains a layer that `build` does not make."""

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, **options)
        self.critic = keras.layers.Dense(1, name="critic")
        self.critic.build([None, 4])

    def train_step(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
        outputs = super().train_step(inputs)
        return {**outputs, "value": tf.reduce_mean(self.critic(inputs["x"]))}


@pytest.mark.parametrize(
    ("trainer_class", "jit", "named"),
    [(Careless, False, "extra"), (OwnNetwork, False, "critic/bias"), (OwnNetwork, "loop", "critic/bias")],
)
def test_warning_for_variables_that_no_checkpoint_holds(
    trainer_class: Any, jit: Any, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_model(datasets=lambda: {"trn": tiny_arrays()}, build=plain_build, model__jit_compile=jit)
    trainer_class(model).train(max_steps=2)
    (warning,) = [line for line in capsys.readouterr().out.splitlines() if "no checkpoint holds" in line]
    assert named in warning


def test_no_warning_for_variables_in_the_state(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = OwnNetwork(tiny_model())
    trainer.state.update({f"critic/{variable.name}": variable.value for variable in trainer.critic.variables})
    trainer.train(max_steps=2)
    assert "WARNING" not in capsys.readouterr().out


def test_an_optimizer_is_registered_for_variables_of_layers() -> None:
    trainer = tiny_trainer()
    layer = trainer.keras_layers["logits"]
    trainer.register_optimizer("second", keras.optimizers.SGD(momentum=0.9), layer.trainable_variables)
    assert {"second/logits_kernel_0_momentum", "second/logits_bias_0_momentum"} <= trainer.state.keys()
    with pytest.raises(ModelError, match="is not a variable of the model"):
        trainer.register_optimizer("third", keras.optimizers.SGD(), [tf.Variable(0.0)])


def test_xla_equals_no_xla() -> None:
    results = []
    for jit in (False, True):
        trainer = tiny_trainer(build=plain_build, model__jit_compile=jit)  # random layers draw other numbers in XLA
        trainer.train([StopOnNaN(), Summaries().every(steps=3)], max_steps=10)
        results.append({name: variable.numpy() for name, variable in trainer.variables.items()})
    for name, value in results[0].items():
        np.testing.assert_allclose(results[1][name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_failed_step_restores_the_newest_checkpoint(tmp_path: Path) -> None:
    trainer = SimpleTrainer(tiny_model(build=poisoned(8), datasets=numbered_datasets), experiment=tmp_path)
    begun_first = ModelSaver(max_to_keep=1, asynchronous=True).every(steps=4)
    with pytest.raises(NonFiniteError):
        trainer.train([begun_first, At(5, lambda: trainer.save()), StopOnNaN(), SaveOnExit()])
    assert (tmp_path / "checkpoints" / "step-0000000007").is_dir()


@pytest.fixture
def deterministic() -> Iterator[None]:
    from tensorflow.python.framework.config import disable_op_determinism

    tf.config.experimental.enable_op_determinism()
    yield
    disable_op_determinism()


@pytest.mark.usefixtures("deterministic")
def test_run_with_op_determinism_trains_and_resumes(tmp_path: Path) -> None:
    """Also with a sparse gradient and with summaries."""

    def build(inputs: Any, train_phase: bool) -> Any:
        words = tf.cast(tf.abs(inputs["x"]) * 10, tf.int32) % 7
        rows = keras.layers.Embedding(7, 3, name="embedding")(words)
        tf.summary.histogram("rows", rows)
        return tiny_build({**inputs, "x": tf.reshape(rows, [-1, 12])}, train_phase)

    for steps in (4, 6):
        trainer = tiny_trainer(tmp_path, build=build, model__clip_gradients__global_norm=1.0, model__accumulate_steps=2)
        watching = [Validation().every(steps=4), Summaries().every(steps=2)]
        trainer.train([LearningRate(rate), *watching, StopOnNaN(), SaveOnExit()], max_steps=steps)
    assert trainer.global_step == 6 and trainer.run.start_row().startswith("resumed at step 4")
