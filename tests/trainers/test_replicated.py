from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import ModelDict, SimpleTrainer
from prototrain.callbacks import LearningRate, SaveOnExit, StopOnNaN
from prototrain.errors import ConfigError, ModelError, NonFiniteError, StepError
from prototrain.launch import launch
from prototrain.model import placement
from prototrain.model.placement import Placement
from prototrain.towers import components, current_tower
from prototrain.trainers.replicated import SyncParameterServerTrainer, SyncReplicatedTrainer
from prototrain.trainers.tower import TowerTrainer
from tests.tiny import At, Losses, classifier, tiny_arrays, tiny_build, tiny_model, values_of_towers


@classifier
def plain_build(x: Any, train_phase: bool) -> Any:
    """No random layers, and batch normalization over all towers: any number of towers gives the same results."""
    x = keras.layers.Dense(6, activation="relu", name="fc0")(x)
    x = keras.layers.BatchNormalization(synchronized=True, name="bn0")(x, training=train_phase)
    return keras.layers.Dense(2, name="logits")(x)


@classifier
def embedding_build(x: Any, train_phase: bool) -> Any:
    """An embedding, whose gradient is sparse."""
    words = tf.cast(tf.abs(x) * 3, tf.int32) % 7
    rows = keras.layers.Embedding(7, 3, name="embedding")(words)
    return keras.layers.Dense(2, name="logits")(tf.reshape(rows, [-1, 12]))


@classifier
def constrained_build(x: Any, train_phase: bool) -> Any:
    return keras.layers.Dense(2, kernel_constraint=keras.constraints.NonNeg(), name="logits")(x)


def endless(batch_size: int = 8) -> dict[str, tf.data.Dataset]:
    dataset = tf.data.Dataset.from_tensor_slices(tiny_arrays())
    return {"trn": dataset.shuffle(40).repeat().batch(batch_size), "vld": dataset.take(11).batch(4)}


def poisoned(step: int, example: int) -> Any:
    """Datasets in which one example of one step's batch is not a number."""

    def make() -> dict[str, tf.data.Dataset]:
        arrays = tiny_arrays()
        arrays["x"][(step - 1) * 8 + example] = np.nan
        return {"trn": tf.data.Dataset.from_tensor_slices(arrays).batch(8)}

    return make


def rate() -> LearningRate:
    return LearningRate(lambda step: 0.02 * 0.9 ** (step / 10))


def trained(model: Any, kind: Any = SimpleTrainer, steps: int = 20, *towers: Any) -> TowerTrainer:
    trainer: TowerTrainer = kind(model, *towers)
    trainer.train([rate(), StopOnNaN()], max_steps=steps)
    return trainer


SETTINGS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "adam": (SyncReplicatedTrainer, 4, {}),
    "an instance, clipped by norm, with an embedding and a frozen variable": (
        SyncReplicatedTrainer,
        2,
        {
            "build": embedding_build,
            "model__optimizer__method": lambda: keras.optimizers.SGD(0.1, momentum=0.5),
            "model__trainable_variables__filter_regex": "embedding|logits/kernel",
            "model__clip_gradients__global_norm": 0.05,
        },
    ),
    "one copy, Nadam and a constraint": (
        SyncParameterServerTrainer,
        2,
        {"build": constrained_build, "model__optimizer__method": "nadam"},
    ),
    "one copy, clipped by value, with weight decay": (
        SyncParameterServerTrainer,
        2,
        {"model__weight_decay__value": 0.5, "model__clip_gradients": True, "model__clip_gradients__minval": -0.02},
    ),
}


@pytest.mark.parametrize(("kind", "towers", "keys"), SETTINGS.values(), ids=SETTINGS)
def test_towers_equal_one(kind: Any, towers: int, keys: dict[str, Any]) -> None:
    keywords = {"build": plain_build, "datasets": endless, **keys}
    one, many = trained(tiny_model(**keywords)), trained(tiny_model(**keywords), kind, 20, towers)
    assert dict(many.outputs) == pytest.approx(dict(one.outputs), rel=2e-3, abs=2e-4)
    assert list(many.trainable) == list(one.trainable)
    for name, variable in one.variables.items():
        for copy in components(many.variables[name]):
            np.testing.assert_allclose(tf.convert_to_tensor(copy), variable, rtol=2e-3, atol=2e-4, err_msg=name)
    assert many.evaluate("vld") == pytest.approx(one.evaluate("vld"), rel=2e-3, abs=2e-4)


@pytest.mark.parametrize("kind", [SyncReplicatedTrainer, SyncParameterServerTrainer])
def test_single_steps_and_resume_are_exact(kind: Any, experiment: Path) -> None:
    whole = values_of_towers(trained(tiny_model(), kind, 8, 2))
    for steps in (3, 8):
        part = kind(tiny_model(), 2, experiment=experiment)
        part.train([rate(), StopOnNaN(), Losses(), SaveOnExit()], max_steps=steps)
    assert part.run.start_row().startswith("resumed at step 3") and values_of_towers(part) == whole
    for name in ("bn0/moving_mean", "bn0/moving_variance"):  # plain statistics are averaged over the towers
        assert len(set(whole[name])) == 1


def test_tower_index_random_numbers_and_means() -> None:
    def build(inputs: Any, train_phase: bool) -> ModelDict:
        net = tiny_build(inputs, train_phase)
        tower = current_tower()
        net.index = tf.constant(float(tower.index))
        net.number = tf.constant(tower.count)
        net.training = tf.constant(int(tower.training))
        kept = tf.reduce_sum(keras.layers.Dropout(0.5, name="probe")(tf.ones([1000]), training=train_phase))
        net.kept, net.kept_squared = kept, kept**2
        return net

    trainer = SyncReplicatedTrainer(tiny_model(build=build), 2)
    trainer.train(max_steps=2)
    assert (trainer.outputs["index"], trainer.outputs["number"], trainer.outputs["training"]) == (0.5, 2, 1)
    assert trainer.outputs["kept_squared"] - trainer.outputs["kept"] ** 2 > 1
    outcome = trainer.evaluate("vld")
    assert outcome is not None
    assert (outcome["index"], outcome["number"], outcome["training"]) == (0, 2, 0)


def test_a_step_of_ones_own_draws_other_numbers_on_each_tower() -> None:
    class Drawing(SyncReplicatedTrainer):
        def train_step(self, inputs: Any) -> Any:
            drawn = keras.random.normal([], seed=self.seeds)
            return {**super().train_step(inputs), "drawn": drawn, "squared": drawn**2}

    trainer = Drawing(tiny_model(), 2)
    with trainer.strategy.scope():
        trainer.seeds = keras.random.SeedGenerator(3)
        trainer.state["seeds"] = trainer.seeds.state
    trainer.train(max_steps=2)
    assert trainer.outputs["squared"] > trainer.outputs["drawn"] ** 2 + 1e-3


def test_counters_that_differ_between_towers_are_an_error() -> None:
    def build(inputs: Any, train_phase: bool) -> ModelDict:
        counter = tf.Variable(0, trainable=False, name="counter")
        counter.assign_add(current_tower().index)
        return tiny_build(inputs, train_phase)

    with pytest.raises(ModelError, match="the towers have different values of counter"):
        SyncReplicatedTrainer(tiny_model(build=build), 2).train(max_steps=2)


class OwnStep(SyncReplicatedTrainer):
    """A step whose first update is finite and made before the second one fails."""

    def train_step(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
        variables = list(self.trainable.values())
        with tf.GradientTape(persistent=True) as tape:
            net = self.build(inputs, True)
            first = tf.add_n([tf.reduce_sum(variable**2) for variable in variables])
        for loss in (first, net["loss"]):
            gradients = tape.gradient(loss, variables)
            self.apply_gradients(list(zip(gradients, variables, strict=True)), loss=loss)
        return {"loss": net["loss"]}


class CountsSteps(SyncReplicatedTrainer):
    """Assigns to a counter, to a moving average and to a weight in each step."""

    def __init__(self, *arguments: Any, averages: bool = True, scoped: bool = True) -> None:
        super().__init__(*arguments)
        first, total = tf.VariableAggregation.ONLY_FIRST_REPLICA, tf.VariableAggregation.SUM
        on_read = tf.VariableSynchronization.ON_READ
        with self.strategy.scope() if scoped else nullcontext():
            self.count = tf.Variable(0, trainable=False, aggregation=first)
            self.average = tf.Variable(0.0, trainable=False, aggregation=tf.VariableAggregation.MEAN)
            self.total = tf.Variable(0.0, trainable=False, synchronization=on_read, aggregation=total)
        self.averages = averages
        self.state.update(count=self.count, average=self.average, total=self.total)

    def train_step(self, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        mean = tf.reduce_mean(inputs["x"])
        self.count.assign_add(1)
        self.total.assign_add(mean)
        self.average.assign(0.5 * self.average + 0.5 * mean)
        change = tf.distribute.get_replica_context().all_reduce("mean", mean) if self.averages else mean
        self.variables["logits/bias"].assign_add(tf.fill([2], change))
        return super().train_step(inputs)


def test_variables_that_train_step_assigns() -> None:
    model = tiny_model(datasets=endless, build=plain_build)
    one, two = CountsSteps(model, 1), CountsSteps(tiny_model(datasets=endless, build=plain_build), 2)
    for trainer in (one, two):
        trainer.train([], max_steps=6)
        assert tf.convert_to_tensor(trainer.count) == 6
    for name in ("average", "logits/bias"):
        np.testing.assert_allclose(*(tf.convert_to_tensor(each.state[name]) for each in (one, two)), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scoped": False}, r"assigns to state\['count'\] once on each tower"),
        ({"averages": False}, "the towers have different values of logits/bias"),
    ],
)
def test_towers_may_not_differ(options: dict[str, bool], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        CountsSteps(tiny_model(datasets=endless, build=plain_build), 2, **options).train([], max_steps=3)


@pytest.mark.parametrize(
    ("kind", "example"), [(SyncReplicatedTrainer, 0), (OwnStep, 7), (SyncParameterServerTrainer, 6)]
)
def test_bad_gradient_in_one_tower_changes_no_variable(kind: Any, example: int) -> None:
    trainer = kind(tiny_model(datasets=poisoned(4, example)), 2)
    good: list[Any] = []
    with pytest.raises(NonFiniteError, match="in step 4"):
        trainer.train([StopOnNaN(), At(3, lambda: good.append(values_of_towers(trainer)))], max_steps=20)
    assert trainer.global_step == 3 and [values_of_towers(trainer)] == good


def test_resume_with_another_number_of_towers(experiment: Path) -> None:
    SimpleTrainer(tiny_model(), experiment=experiment).train([SaveOnExit()], max_steps=5)
    trainer = SyncReplicatedTrainer(tiny_model(), 2, experiment=experiment)
    trainer.train([SaveOnExit()], max_steps=9)
    assert "changed: " in trainer.run.start_row() and "towers 1 -> 2" in trainer.run.start_row()
    copies = [copy for name, one in trainer.variables.items() if "seed" in name for copy in components(one)]
    assert copies and {int(copy[1]) for copy in copies} == {9}


def test_variable_devices() -> None:
    trainer = SyncParameterServerTrainer(tiny_model(), 2, parameter_device="CPU:3")
    assert {variable.device[-5:] for variable in trainer.trainable.values()} == {"CPU:3"}


def test_indivisible_batch() -> None:
    with pytest.raises(ConfigError, match=r"batch_size: 8 .* 3 towers; 9 would"):
        SyncReplicatedTrainer(tiny_model(), 3)

    def datasets() -> dict[str, tf.data.Dataset]:
        arrays = {name: array[:11] for name, array in tiny_arrays().items()}
        return {"trn": tf.data.Dataset.from_tensor_slices(arrays).batch(8)}

    with pytest.raises(StepError, match=r"step 2 failed in the model: .*not divide into 2 equal parts.*drop_remainder"):
        SyncReplicatedTrainer(tiny_model(datasets=datasets), 2).train(max_steps=5)


def test_towers_option(tmp_path: Path) -> None:
    model = tiny_model(trainer__experiment_base_dir=str(tmp_path), model__num_steps=0)
    trainer = launch(model, towers="CPU:1,CPU:3", callbacks=[], fresh=True)
    assert isinstance(trainer, SyncReplicatedTrainer)
    assert trainer.describe()["devices"] == "CPU:1, CPU:3"
    with pytest.raises(ConfigError, match="SimpleTrainer has one tower only; derive it from SyncReplicatedTrainer"):
        launch(model, trainer=SimpleTrainer, towers=2)


def test_devices_of_a_placement() -> None:
    class OnSecond(Placement):
        def make_variable(self, make: Any, **arguments: Any) -> tf.Variable:
            with tf.device("CPU:1"):
                return super().make_variable(make, **arguments)

    trainer = TowerTrainer(tiny_model(), placement=OnSecond())
    trainer.train(max_steps=2)
    assert {variable.device[-5:] for variable in trainer.variables.values()} == {"CPU:1"}
    assert trainer.describe()["devices"] == "CPU:1"


def test_mean_of_tensors_of_all_shapes_and_dtypes(monkeypatch: Any) -> None:
    monkeypatch.setattr(placement, "PACKED_ELEMENTS", 6)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    towers = Placement(strategy, combines_by_copies=True)
    assert towers.may_fail and not Placement(strategy).may_fail
    given = [
        tf.constant([[1.0, 2.0], [3.0, 4.0]]),  # small
        tf.constant([1.0, 2.0], tf.float64),  # the only small one of its kind
        tf.range(12.0),  # large
        tf.constant(5.0),  # small
        tf.zeros([0]),
        tf.zeros([0], tf.float16),  # the only one of this kind
        tf.IndexedSlices(tf.ones([2, 3]), tf.constant([1, 0]), tf.constant([4, 3])),
    ]

    @tf.function
    def means() -> Any:
        def tower(_: Any) -> Any:
            context = tf.distribute.get_replica_context()
            scale = tf.cast(context.replica_id_in_sync_group, tf.float32) * 2 + 1  # 1 and 3: 2 in the middle
            scaled = [tf.nest.map_structure(lambda one: one * tf.cast(scale, one.dtype), one) for one in given[:-1]]
            sparse = tf.IndexedSlices(given[-1].values * scale, given[-1].indices, given[-1].dense_shape)
            found = towers.mean([*scaled, sparse])
            return [*found[:-1], tf.convert_to_tensor(found[-1])]

        return [towers.strategy.experimental_local_results(one) for one in towers.run(tower, {"x": tf.zeros([2])})]

    for (first, second), expected in zip(means(), given, strict=True):
        np.testing.assert_array_equal(first, tf.convert_to_tensor(expected) * 2)
        np.testing.assert_array_equal(first, second)
