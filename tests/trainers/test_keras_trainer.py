"""A compiled Keras model trains as `fit` trains it, and resumes, stops and fails as every other model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import KerasTrainer, default_callbacks
from prototrain.callbacks import KerasCallback, ModelSaver, SaveOnExit, StopOnNaN, Validation
from prototrain.errors import DataError, ModelError, NonFiniteError, PrototrainError
from prototrain.experiment.facts import differences
from prototrain.trainers import keras_trainer
from prototrain.trainers.keras_model import named_optimizers, optimizers_of
from tests.tiny import values

LAYERS = keras.layers
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.normal(size=(40, 6, 6, 1)).astype(np.float32)
MEANS = IMAGES.mean((1, 2, 3))[:, None]
LABELS = (MEANS[:, 0] > 0).astype(np.int32)
WEIGHTS = RANDOM.uniform(0.5, 2.0, size=40).astype(np.float32)


def batches(*parts: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(parts).batch(16)  # the last one is short


def mlp() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            LAYERS.Flatten(),
            LAYERS.Dense(8, activation="relu", kernel_regularizer="l2", kernel_constraint="non_neg", name="hidden"),
            LAYERS.Dropout(0.3, seed=5),
            LAYERS.Dense(2, name="logits"),
        ],
        name="mlp",
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def convnet() -> keras.Model:
    image = keras.Input((6, 6, 1))
    hidden = LAYERS.BatchNormalization(name="norm")(LAYERS.Conv2D(4, 3, name="conv")(image))
    hidden = LAYERS.GlobalAveragePooling2D()(LAYERS.Dropout(0.2)(LAYERS.ReLU()(hidden)))
    model = keras.Model(image, LAYERS.Dense(1, activation="sigmoid", name="probability")(hidden), name="convnet")
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "binary_crossentropy", metrics=[keras.metrics.AUC()])
    return model


def two_outputs() -> keras.Model:
    image = keras.Input((6, 6, 1), name="image")
    hidden = LAYERS.Dense(8, activation="tanh", name="hidden")(LAYERS.Flatten()(image))
    outputs = {
        "label": LAYERS.Dense(2, activation="softmax", name="label")(hidden),
        "mean": LAYERS.Dense(1, name="mean")(hidden),
    }
    model = keras.Model({"image": image}, outputs, name="two")
    model.compile(
        "rmsprop",
        loss={"label": "sparse_categorical_crossentropy", "mean": "mse"},
        loss_weights={"label": 1.0, "mean": 0.3},
        metrics={"mean": ["mae"]},
    )
    return model


class Subclassed(keras.Model):
    """Adds a loss of its own, and is not built before it is trained."""

    def __init__(self) -> None:
        super().__init__(name="subclassed")
        self.hidden = LAYERS.Dense(8, activation="relu", name="hidden")
        self.out = LAYERS.Dense(1, name="out")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        hidden = self.hidden(tf.reshape(inputs, [-1, 36]))
        self.add_loss(0.01 * tf.reduce_mean(hidden**2))
        return self.out(hidden)


def weighted() -> keras.Model:
    model = Subclassed()
    model.compile(keras.optimizers.AdamW(1e-2, use_ema=True), "mse", weighted_metrics=["mae"])
    return model


def linear() -> keras.Model:
    model = keras.Sequential([keras.Input((6, 6, 1)), LAYERS.Flatten(), LAYERS.Dense(2, name="logits")], name="linear")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


class Logs(keras.callbacks.Callback):
    """Keeps the logs of every epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.by_epoch: list[dict[str, float]] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.by_epoch.append(dict(logs))


def made(make: Callable[[], keras.Model]) -> keras.Model:
    """The same model in the same state each time, as in a process of its own."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    return make()


class Doubling(keras.optimizers.SGD):  # type: ignore[misc]
    """Doubles gradients, in the method that `fit` calls."""

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        return super().apply_gradients([(2.0 * gradient, variable) for gradient, variable in grads_and_vars])


def doubling() -> keras.Model:
    model = mlp()
    model.compile(Doubling(0.1, loss_scale_factor=8.0), model.loss, metrics=["accuracy"])
    return model


class OwnStep(Subclassed):
    """A `train_step` of its own, with two optimizers and a metric of its own, as a GAN has."""

    def compile(self, *arguments: Any, **keywords: Any) -> None:
        super().compile(*arguments, **keywords)
        self.of_hidden = keras.optimizers.SGD(0.05, momentum=0.9)
        self.norm = keras.metrics.Mean(name="norm")
        self.seed = keras.random.SeedGenerator(7)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        noise = keras.random.normal(tf.shape(x), seed=self.seed)
        with tf.GradientTape(persistent=True) as tape:
            loss = self.compute_loss(x, y, self(x + 0.1 * noise, training=True))
        parts = ((self.optimizer, self.out), (self.of_hidden, self.hidden))
        for optimizer, layer in parts:
            gradients = tape.gradient(loss, layer.trainable_weights)
            optimizer.apply_gradients(zip(gradients, layer.trainable_weights, strict=True))
        self.norm.update_state(tf.linalg.global_norm(gradients))
        return {"loss": loss, "norm": self.norm.result()}


def own_step() -> keras.Model:
    model = OwnStep()
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model


class OnlySuper(Subclassed):
    def train_step(self, data: Any) -> dict[str, Any]:
        found = dict(super().train_step(data))
        return {"loss": found.pop("loss"), "compile_metrics": found}


def only_super() -> keras.Model:
    model = OnlySuper()
    model.compile("adam", "mse", metrics=["mae"])
    return model


KINDS: dict[Callable[[], keras.Model], tuple[Any, ...]] = {
    mlp: (IMAGES, LABELS),
    convnet: (IMAGES, LABELS[:, None]),
    two_outputs: ({"image": IMAGES}, {"label": LABELS, "mean": MEANS}),
    weighted: (IMAGES, MEANS, WEIGHTS),
    doubling: (IMAGES, LABELS),
    own_step: (IMAGES, MEANS),
    only_super: (IMAGES, MEANS),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_a_model_trains_as_in_fit(make: Callable[[], keras.Model]) -> None:
    data = batches(*KINDS[make])
    there, expected = made(make), Logs()
    there.fit(data, validation_data=data, epochs=2, verbose=0, shuffle=False, callbacks=[expected])
    here, found = made(make), Logs()
    KerasTrainer(here, data, validation=data).train([Validation(), StopOnNaN(), KerasCallback(found)], max_epoch=2)
    assert len(found.by_epoch) == 2
    for mine, theirs in zip(found.by_epoch, expected.by_epoch, strict=True):
        assert {name: mine[name] for name in theirs} == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    all_mine, all_theirs = ([*model.variables, *model.optimizer.variables] for model in (here, there))
    for mine, theirs in zip(all_mine, all_theirs, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5, err_msg=mine.path)


def test_making_a_trainer_changes_nothing_in_a_trained_model_and_frozen_layers_stay() -> None:
    data = batches(*KINDS[convnet])
    model = made(convnet)
    model.fit(data, verbose=0, shuffle=False)
    model.get_layer("conv").trainable = False
    model.compile("adam", model.loss)
    before = [variable.numpy() for variable in model.variables]
    trainer = KerasTrainer(model, data)
    assert all((old == new.numpy()).all() for old, new in zip(before, model.variables, strict=True))
    assert list(trainer.trainable) == ["norm/gamma", "norm/beta", "probability/kernel", "probability/bias"]
    trainer.train([], max_steps=3)
    changed = {new.path for old, new in zip(before, model.variables, strict=True) if (old != new.numpy()).any()}
    assert changed.isdisjoint({"conv/kernel", "conv/bias"}) and changed >= {"norm/moving_mean", "probability/kernel"}


def test_a_resumed_run_is_exact_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    def run(name: str, steps: int) -> KerasTrainer:
        model = made(convnet)
        model.compile("adam", model.loss, metrics=["accuracy"])
        trainer = KerasTrainer(
            model,
            lambda: tf.data.Dataset.from_tensor_slices(KINDS[convnet]).shuffle(40).batch(8),
            validation=batches(*KINDS[convnet]),
            experiment=tmp_path / name,
        )
        trainer.train([Validation().every(steps=2), ModelSaver().every(steps=4), SaveOnExit()], max_steps=steps)
        return trainer

    whole = run("whole", 9)
    run("parts", 7)
    parts = run("parts", 9)
    assert parts.run.resume_line().startswith("resumed at step 7")
    assert values(parts) == values(whole) and "optimizer/iteration" in values(parts)
    measured = [dict(trainer.monitors.history("vld/accuracy")) for trainer in (parts, whole)]
    assert measured[0].items() >= measured[1].items()
    parts.keras_model.compile(keras.optimizers.Adam(beta_1=0.8), parts.keras_model.loss, metrics=["accuracy"])
    other = KerasTrainer(parts.keras_model, batches(*KINDS[convnet]))._facts()
    assert "optimizers optimizer beta_1 0.9 -> 0.8" in differences(parts._facts(), other)


def test_an_own_train_step_resumes_exactly_with_all_its_optimizers(tmp_path: Path) -> None:
    def run(name: str, steps: int) -> KerasTrainer:
        trainer = KerasTrainer(made(own_step), batches(*KINDS[own_step]), experiment=tmp_path / name)
        trainer.train([SaveOnExit()], max_steps=steps)
        return trainer

    whole = run("whole", 5)
    run("parts", 4)
    parts = run("parts", 5)
    assert parts.run.resume_line().startswith("resumed at step 4")
    assert values(parts) == values(whole)
    assert {"optimizer/iteration", "of_hidden/iteration", "norm/total"} <= values(parts).keys()


class Accumulating(Subclassed):
    """Updates in every third step, by `optimizer` or by `sparse`, and in the others, if at all, by `dense`."""

    def compile(self, *arguments: Any, **keywords: Any) -> None:
        super().compile(*arguments, jit_compile=False, **keywords)
        self.number = tf.Variable(0, trainable=False)

    def update(self, gradients: Any, weights: Any) -> Any:
        optimizer = getattr(self, "sparse", self.optimizer)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return tf.constant(0)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        weights = self.trainable_weights
        gradients = tape.gradient(loss, weights)
        if hasattr(self, "dense"):
            self.dense.apply_gradients([(gradients[0], weights[0])])
        self.number.assign_add(1)
        tf.cond(self.number % 3 == 0, lambda: self.update(gradients, weights), lambda: tf.constant(0))
        return {"loss": loss}


def accumulating(*others: str) -> keras.Model:
    model = Accumulating()
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    for name in others:
        setattr(model, name, keras.optimizers.SGD(0.05, momentum=0.9, name=name))
    return model


@pytest.mark.parametrize("others", [(), ("sparse",), ("sparse", "dense")], ids=" ".join)
def test_an_update_in_a_branch_that_the_first_step_does_not_take(others: tuple[str, ...], tmp_path: Path) -> None:
    """As in `fit`, with the slots that the update asks for."""
    data = batches(*KINDS[own_step])
    expected = made(partial(accumulating, *others))
    expected.fit(data, epochs=3, shuffle=False, verbose=0)
    for steps in (4, 9):
        model = made(partial(accumulating, *others))
        trainer = KerasTrainer(model, data, experiment=tmp_path)
        trainer.train([SaveOnExit()], max_steps=steps)
    assert trainer.run.resume_line().startswith("resumed at step 4")
    for mine, theirs in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)
    updating = "/".join([*others[:1], "iteration"]) if others else "optimizer/iteration"
    assert int(trainer.state[updating]) == 3


def test_an_optimizer_that_is_met_too_late_is_named_with_its_cure() -> None:
    with pytest.raises(
        ModelError, match=r"uses its optimizer 'adam' .* self.optimizer.build\(self.trainable_variables"
    ):
        KerasTrainer(made(partial(accumulating, "dense")), batches(*KINDS[own_step]))


def sgd() -> Any:
    optimizer = keras.optimizers.SGD()
    optimizer.build([keras.Variable(0.0, name="weight")])
    return optimizer


ONE, OTHER = sgd(), sgd()


@pytest.mark.parametrize(
    ("attributes", "names"),
    [
        ({"d_optimizer": ONE, "_g_optimizer": OTHER}, ["d_optimizer", "g_optimizer"]),
        ({"first": ONE, "second": ONE}, ["first"]),
        ({"first": ONE, "optimizer": ONE}, ["optimizer"]),
        ({"all": [ONE, OTHER]}, ["all/0", "all/1"]),
        ({"all": {"d": ONE, "g": OTHER}, "g": OTHER}, ["g", "all/d"]),
        ({"unused": keras.optimizers.SGD()}, []),
    ],
    ids=["attributes", "two names", "that of compile", "list", "dict", "not built"],
)
def test_each_optimizer_of_a_model_has_one_name(attributes: dict[str, Any], names: list[str]) -> None:
    model = keras.Model()
    for name, value in attributes.items():
        setattr(model, name, value)
    assert list(optimizers_of(model)) == names


def test_a_checkpoint_with_an_optimizer_under_two_names_resumes_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str, steps: int) -> KerasTrainer:
        trainer = KerasTrainer(made(own_step), batches(*KINDS[own_step]), experiment=tmp_path / name)
        trainer.train([SaveOnExit()], max_steps=steps)
        return trainer

    whole = run("whole", 5)
    with monkeypatch.context() as earlier:
        earlier.setattr(keras_trainer, "optimizers_of", lambda model: dict(named_optimizers(model)))
        assert "self_unconditional_dependency_names/of_hidden/iteration" in values(run("parts", 4))
    parts = run("parts", 5)
    assert parts.run.resume_line().startswith("resumed at step 4")
    assert values(parts) == values(whole)


def test_what_a_script_has_changed_takes_effect_and_is_named(tmp_path: Path) -> None:
    def run(
        steps: int, rate: Any = 1e-3, kind: Any = keras.optimizers.Adam, drop: float = 0.2, metrics: Any = ("mae",)
    ) -> KerasTrainer:
        made(mlp)  # which counts names and seeds anew
        layers = [keras.Input((6, 6, 1)), LAYERS.Flatten(), LAYERS.Dropout(drop, name="drop"), LAYERS.Dense(1)]
        model = keras.Sequential(layers, name="changing")
        model.compile(kind(rate), "mse", metrics=list(metrics))
        trainer = KerasTrainer(model, batches(IMAGES, MEANS), experiment=tmp_path)
        trainer.train([SaveOnExit()], max_steps=steps)
        return trainer

    assert run(2).run.resume_line() == "fresh"
    edits: list[tuple[dict[str, Any], list[str]]] = [
        (
            {"drop": 0.9, "rate": 1e-4},
            ["optimizer learning_rate 0.001 -> 0.0001"],
        ),
        ({"drop": 0.9, "rate": 1e-4}, []),
        (
            {"kind": keras.optimizers.SGD, "rate": 0.1, "metrics": ["mae", "mse"]},
            ["optimizer Adam -> SGD"],
        ),
        (
            {
                "kind": keras.optimizers.SGD,
                "rate": keras.optimizers.schedules.ExponentialDecay(0.2, 1, 0.5),
                "metrics": [],
            },
            ["optimizer"],
        ),
    ]
    for steps, (edit, named) in enumerate(edits, start=3):
        trainer = run(steps, **edit)
        line = trainer.run.resume_line()
        assert all(words in line for words in named), line
        rate = edit.get("rate", 1e-3)
        if isinstance(rate, float):
            assert float(trainer.optimizer.learning_rate) == pytest.approx(rate)
            assert bool(named) == ("changed: " in line), line
        else:
            assert "optimizer learning_rate 0.1 -> " in line
            assert float(trainer.optimizer.learning_rate) < 0.2


class Shuffling(keras.utils.PyDataset):  # type: ignore[misc]
    """Has another order in each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.order, self.generator = np.arange(40), np.random.default_rng(3)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        chosen = self.order[index * 10 : index * 10 + 10]
        return IMAGES[chosen], LABELS[chosen]

    def on_epoch_end(self) -> None:
        self.generator.shuffle(self.order)


def forty() -> Iterator[tuple[Any, Any]]:
    for start in range(0, 40, 10):
        yield IMAGES[start : start + 10], LABELS[start : start + 10]


DATA: dict[str, Callable[[], dict[str, Any]]] = {
    "arrays": lambda: {
        "x": IMAGES.astype(np.float64),
        "y": LABELS,
        "class_weight": {1: 3.0, 0: 0.5},
        "batch_size": 16,
        "validation_split": 0.25,
        "validation_freq": 2,
    },
    "weights": lambda: {"x": IMAGES, "y": LABELS, "sample_weight": WEIGHTS, "validation_data": (IMAGES, LABELS)},
    "PyDataset": lambda: {"x": Shuffling(), "validation_data": (IMAGES, LABELS), "validation_steps": 2},
    "generator": lambda: {"x": forty(), "steps_per_epoch": 2},
}


@pytest.mark.parametrize("data", DATA)
def test_fit_takes_what_fit_takes_and_returns_the_same_history(data: str) -> None:
    there, here = made(linear), made(linear)
    here.set_weights(there.get_weights())
    expected = there.fit(**DATA[data](), epochs=2, verbose=0, shuffle=False).history
    found = KerasTrainer(here).fit(**DATA[data](), epochs=2, verbose=0, shuffle=False).history
    assert found.keys() == expected.keys()
    for name, values_of in expected.items():
        assert found[name] == pytest.approx(values_of, rel=1e-4, abs=1e-5), name


def test_data_of_unknown_length_and_a_python_dataset_resume_exactly(tmp_path: Path) -> None:
    def run(name: str, data: Any, stop: int | None = None) -> KerasTrainer:
        trainer = KerasTrainer(made(linear), data, experiment=tmp_path / name)
        trainer.fit(
            epochs=3, verbose=0, max_steps=stop, callbacks=[keras.callbacks.CSVLogger(tmp_path / f"{name}.csv")]
        )
        return trainer

    for name, make in {"python": Shuffling, "function": lambda: forty}.items():
        whole = run(name, make())
        run(f"{name} in parts", make(), stop=5)
        with open(tmp_path / f"{name} in parts.csv", "a", encoding="utf-8") as file:
            file.write("1,0.5,0.7\n2,0.")  # as if the run had gone on and was killed before it was saved
        parts = run(f"{name} in parts", make())
        assert parts.run.resume_line().startswith("resumed at step 5")
        assert values(parts) == values(whole) and parts.global_step == 12
        rows = [(tmp_path / f"{run_name}.csv").read_text() for run_name in (name, f"{name} in parts")]
        assert rows[0] == rows[1] and rows[0].count("\n") == 4


def test_validation_data_has_a_structure_of_its_own() -> None:
    model = made(mlp)
    model.compile("sgd", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    of_labels = batches(IMAGES, LABELS, 0 * WEIGHTS)
    trainer = KerasTrainer(model, batches(IMAGES, LABELS), validation=of_labels)
    measured = trainer.evaluate("vld")
    assert measured == pytest.approx(model.evaluate(of_labels, verbose=0, return_dict=True), rel=1e-5)

    alone = WithoutLabels()
    alone.compile("sgd")
    trainer = KerasTrainer(
        alone, tf.data.Dataset.from_tensor_slices(IMAGES).batch(8), validation=batches(IMAGES, MEANS)
    )
    trainer.train([Validation()], max_steps=5)
    expected = alone.evaluate(batches(IMAGES, MEANS), verbose=0, return_dict=True)
    assert trainer.monitors.latest("vld/loss") == pytest.approx(expected["loss"], rel=1e-5)


class WithoutLabels(Subclassed):
    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return keras.ops.mean(y_pred**2 if y is None else (y - y_pred) ** 2)


class Counting(LAYERS.Layer):  # type: ignore[misc]
    """Counts its calls in variables that Keras does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.total = tf.Variable(0), [tf.Variable(0.0, trainable=False)]
        self.generator = tf.random.Generator.from_seed(1)

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1)
        self.total[0].assign_add(1.0)
        return x + 0.0 * self.generator.normal(tf.shape(x))


def test_making_a_trainer_moves_no_state_whoever_owns_it() -> None:
    made(mlp)
    sequences = RANDOM.normal(size=(16, 5, 2)).astype(np.float32)
    counting = Counting()
    layers = [LAYERS.BatchNormalization(), counting, LAYERS.LSTM(3, stateful=True), LAYERS.Dense(1)]
    model = keras.Sequential([keras.Input((5, 2), batch_size=8), *layers])
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((sequences, MEANS[:16])).batch(8)

    def state() -> list[Any]:
        mine = [counting.calls, *counting.total, counting.generator.state]
        return [np.array(variable) for variable in [*model.variables, *model.metrics_variables, *mine]]

    before = state()
    trainer = KerasTrainer(model, data, validation=data)
    trainer._rehearse("vld")
    for then, now in zip(before, state(), strict=True):
        np.testing.assert_array_equal(then, now)
    trainer.train([], max_steps=5)
    assert int(counting.calls) == 5 and float(counting.total[0]) == 5.0


def test_the_seed_of_keras_is_that_of_the_run_and_global_generators_are_left_alone() -> None:
    def drawn() -> tuple[float, float, float, float]:
        uniform = keras.random.uniform([])
        return random.random(), np.random.random(), float(tf.random.uniform([])), float(uniform)

    def run(seed: int, **config: Any) -> tuple[int, list[bytes], Any]:
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(seed)
        model = Subclassed()  # whose layers are not built yet
        model.compile("sgd", "mse")
        keras.random.uniform([])  # which makes Keras's global generator
        trainer = KerasTrainer(model, lambda: batches(IMAGES, MEANS).shuffle(5), config=config)
        after = drawn()
        trainer.train([], max_steps=2)
        return trainer.config["trainer.random_seed"], [np.asarray(v).tobytes() for v in model.variables], after

    keras.utils.set_random_seed(5)
    Subclassed()
    keras.random.uniform([])
    expected = drawn()
    first, again, other = run(5), run(5), run(6)
    assert first == again and first[0] == 5 and first[2] == expected
    assert other[0] == 6 and first[1] != other[1]
    assert run(5, **{"trainer.random_seed": 9})[0] == 9


def test_a_loss_that_is_not_finite_is_not_applied() -> None:
    model = made(mlp)
    model.compile(keras.optimizers.SGD(1e30), model.loss, metrics=["accuracy"])
    with pytest.raises(NonFiniteError, match="in step 2"):
        KerasTrainer(model, batches(IMAGES, LABELS)).train([StopOnNaN()], max_steps=5)
    assert all(np.isfinite(variable.numpy()).all() for variable in [*model.variables, *model.metrics_variables])


def test_the_default_callbacks_and_predictions_by_name(tmp_path: Path) -> None:
    model, data = made(two_outputs), batches(*KINDS[two_outputs])
    keys = {"trainer.validation_step_interval": 2, "model.num_steps": 4}
    trainer = KerasTrainer(model, data, validation=data, experiment=tmp_path / "two", config=keys)
    trainer.train(default_callbacks(trainer.model))
    assert trainer.run.checkpoints.steps() == [4]
    assert [step for step, _ in trainer.monitors.history("vld/loss")] == [2, 4]
    assert list(trainer.element_spec) == ["x/image", "y/label", "y/mean"]
    predict = trainer.get_predictor(["x/image"], ["y_pred/label"])
    np.testing.assert_allclose(predict(IMAGES)[0], model({"image": IMAGES})["label"], atol=1e-6)
    counted = [variable.numpy() for variable in model.metrics_variables]
    assert trainer.evaluate("vld", batches=1) is not None
    assert counted == [variable.numpy() for variable in model.metrics_variables]
    with pytest.raises(DataError, match="no dataset 'tst'; there are trn, vld"):
        trainer.evaluate("tst")


def test_a_name_that_only_the_keras_model_has_says_where_it_is() -> None:
    trainer = KerasTrainer(made(mlp), (IMAGES, LABELS))
    with pytest.raises(
        DataError, match=r"KerasTrainer has no predict; the Keras model has it: trainer.keras_model.pred"
    ):
        trainer.predict(IMAGES)
    assert not hasattr(trainer, "nothing")


def flowers(examples: int = 40, columns: int = 4) -> tf.data.Dataset:
    points = np.random.default_rng(1).normal(size=(examples, columns)).astype(np.float32)
    return batches(points, (points[:, 0] > 0).astype(np.int32))


def noisy() -> keras.Model:
    """A model that draws random numbers and moves its statistics also when it is evaluated."""
    keras.utils.set_random_seed(3)

    class Noise(LAYERS.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="noise")
            self.seed = keras.random.SeedGenerator(5)

        def call(self, x: Any) -> Any:
            return x + keras.random.normal(keras.ops.shape(x), seed=self.seed)

    model = keras.Sequential([keras.Input((4,)), Noise(), LAYERS.Dense(2, name="logits")])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"])
    return model


def test_the_validation_is_tried_out_before_the_first_step_and_moves_nothing() -> None:
    def final(*callbacks: Any) -> list[bytes]:
        model = noisy()
        KerasTrainer(model, flowers(), validation=flowers()).train(callbacks, max_steps=4)
        return [np.asarray(variable).tobytes() for variable in model.variables]

    late = Validation()  # not due before the run is over
    late.at_end = False
    assert final(late.every(steps=50)) == final()


def test_a_mistake_in_the_validation_shows_before_the_first_step() -> None:
    trainer = KerasTrainer(noisy(), flowers(), validation=flowers(columns=3))
    with pytest.raises(ValueError, match="expected"):
        trainer.train([Validation().every(steps=50)], max_steps=60)
    assert trainer.global_step == 0


def test_in_16_bits_the_loss_is_scaled_by_the_engine() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = keras.Sequential([keras.Input((6, 6, 1)), LAYERS.Flatten(), LAYERS.Dense(1)])
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile("sgd", "mse")
    trainer = KerasTrainer(model, batches(IMAGES, MEANS))
    assert trainer.loss_scale is not None and trainer.optimizer is model.optimizer.inner_optimizer


@pytest.mark.parametrize(
    ("model", "data", "error", "message"),
    [
        (lambda: 3, None, ModelError, "KerasTrainer takes a keras.Model, not int"),
        (lambda: keras.Sequential(name="raw"), None, ModelError, r"raw has no optimizer: call its compile"),
        (mlp, 3, DataError, "must be arrays of one length, not int"),
        (mlp, None, DataError, "has no data yet, so it has no train_data: give it some, or call fit"),
        (mlp, (IMAGES, LABELS[1:]), DataError, r"arrays .* of one length, not tuple of lengths 40, 39"),
        (mlp, batches(IMAGES, LABELS).take(0), DataError, "dataset 'trn' is empty"),
    ],
)
def test_what_cannot_be_trained_is_one_clear_line(
    model: Any, data: Any, error: type[PrototrainError], message: str
) -> None:
    with pytest.raises(error, match=message):
        KerasTrainer(model(), data).train_data  # noqa: B018 - of one without data, nothing is there


@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        ({"validation_data": (IMAGES, LABELS)}, "fit: without x there is no effect of validation_data"),
        ({"y": LABELS, "sample_weight": WEIGHTS}, "fit: without x there is no effect of y, sample_weight"),
        ({"batch_size": 8, "shuffle": False}, "fit: without x there is no effect of batch_size, shuffle"),
        ({"validation_steps": 2}, "fit: without validation data there is no effect of validation_steps"),
    ],
)
def test_arguments_of_fit_without_effect_are_refused(arguments: dict[str, Any], unused: str) -> None:
    with pytest.raises(DataError, match=unused):
        KerasTrainer(mlp(), (IMAGES, LABELS)).fit(**arguments)


def test_arguments_of_a_trainer_without_data_are_refused() -> None:
    with pytest.raises(DataError, match="KerasTrainer: without data there is no effect of validation, batch_size"):
        KerasTrainer(mlp(), validation=(IMAGES, LABELS), batch_size=4)


def test_a_validation_of_ones_own_and_how_often_fit_is_to_validate() -> None:
    trainer = KerasTrainer(mlp(), (IMAGES, LABELS), validation=(IMAGES, LABELS))
    with pytest.raises(PrototrainError, match="leave out validation_steps and validation_freq"):
        trainer.fit(callbacks=[Validation().every(epochs=1)], validation_freq=2)


def test_a_fit_that_fails_before_it_trains_does_not_count() -> None:
    trainer = KerasTrainer(mlp(), (IMAGES, LABELS), batch_size=20)
    with pytest.raises(ValueError, match="steps_per_epoch must be at least 1"):
        trainer.fit(epochs=3, steps_per_epoch=0)
    trainer.fit(epochs=2, verbose=0)
    assert trainer.global_step == 4


def test_an_iterator_that_cannot_be_told_from_a_read_one() -> None:
    with pytest.raises(DataError, match="a zip can be read only once; give KerasTrainer the function that makes it"):
        KerasTrainer(mlp(), zip([IMAGES], [LABELS], strict=True))
    assert KerasTrainer(mlp(), lambda: zip([IMAGES], [LABELS], strict=True)).fit(verbose=0).history["loss"]
