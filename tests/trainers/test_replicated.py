from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import ModelDict, SimpleTrainer
from prototrain.callbacks import LearningRate, SaveOnExit, StopOnNaN
from prototrain.errors import ConfigError, NonFiniteError, StepError
from prototrain.launch import launch
from prototrain.towers import components, current_tower
from prototrain.trainers.replicated import SyncReplicatedTrainer
from prototrain.trainers.tower import TowerTrainer
from tests.conftest import ROOT
from tests.preloaded import Program
from tests.tiny import At, Losses, tiny_arrays, tiny_build, tiny_model

STEPS = 50


def plain_build(inputs: Any, train_phase: bool) -> ModelDict:
    """No random layers, and batch normalisation over all towers: what any number of towers must agree on."""
    net = ModelDict()
    net.x = inputs["x"]
    net.fc0 = keras.layers.Dense(6, activation="relu", name="fc0")(net.last)
    net.bn0 = keras.layers.BatchNormalization(synchronized=True, name="bn0")(net.last, training=train_phase)
    net.logits = keras.layers.Dense(2, name="logits")(net.last)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=inputs["y"], logits=net.logits)
    net.loss = tf.reduce_mean(losses)
    correct = tf.equal(tf.argmax(net.logits, 1, output_type=tf.int32), inputs["y"])
    net.accuracy = tf.reduce_mean(tf.cast(correct, tf.float32))
    return net


def embedding_build(inputs: Any, train_phase: bool) -> ModelDict:
    """An embedding, whose gradient is sparse."""
    net = ModelDict()
    net.ids = tf.cast(tf.abs(inputs["x"]) * 3, tf.int32) % 7
    net.embedded = keras.layers.Embedding(7, 3, name="embedding")(net.ids)
    net.logits = keras.layers.Dense(2, name="logits")(tf.reshape(net.last, [-1, 12]))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=inputs["y"], logits=net.logits)
    net.loss = tf.reduce_mean(losses)
    return net


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


def bits(trainer: TowerTrainer) -> dict[str, list[bytes]]:
    """The bits of every tower's copy of every variable in the trainer's state."""
    return {
        name: [np.asarray(copy).tobytes() for copy in components(entry)]
        for name, entry in trainer.state.items()
        if isinstance(entry, tf.Variable | keras.Variable)
    }


def trained(model: Any, towers: int, steps: int = STEPS) -> tuple[TowerTrainer, dict[str, float]]:
    trainer = SimpleTrainer(model) if towers == 1 else SyncReplicatedTrainer(model, towers)
    trainer.train([LearningRate(lambda step: 0.02 * 0.9 ** (step / 10)), StopOnNaN()], max_steps=steps)
    return trainer, dict(trainer.outputs)


SETTINGS: dict[str, dict[str, Any]] = {
    "adam": {},
    "msgd, clipped by value, with weight decay": {
        "model__optimizer__method": "msgd",
        "model__weight_decay__value": 0.5,
        "model__clip_gradients": True,
        "model__clip_gradients__minval": -0.02,
        "model__clip_gradients__maxval": 0.02,
    },
    "an instance, clipped by norm, with an embedding and a frozen variable": {
        "build": embedding_build,
        "model__trainable_variables__filter_regex": "embedding|logits/kernel",
        "model__clip_gradients__global_norm": 0.05,
    },
}


@pytest.fixture(scope="module")
def whole() -> dict[str, list[bytes]]:
    """The bits of 12 steps on two towers, in as few calls as possible."""
    return bits(trained(tiny_model(), 2, 12)[0])


class TestEqualResults:
    @pytest.mark.parametrize("setting", SETTINGS)
    def test_any_number_of_towers_gives_the_results_of_one(self, setting: str) -> None:
        keywords = {"build": plain_build, "datasets": endless, **SETTINGS[setting]}

        def model() -> Any:
            made = tiny_model(**keywords)
            if setting.startswith("an instance"):
                made.config["model.optimizer.method"] = keras.optimizers.SGD(0.1, momentum=0.5)
            return made

        one, expected = trained(model(), 1)
        many, outputs = trained(model(), 4 if setting == "adam" else 2)
        assert outputs == pytest.approx(expected, rel=2e-3, abs=2e-4)
        assert list(many.trainable) == list(one.trainable)
        for name, variable in one.variables.items():
            for copy in components(many.variables[name]):
                np.testing.assert_allclose(copy, variable, rtol=2e-3, atol=2e-4, err_msg=name)
        assert many.evaluate("vld") == pytest.approx(one.evaluate("vld"), rel=2e-3, abs=2e-4)

    def test_a_batch_per_tower(self) -> None:
        _, expected = trained(tiny_model(build=plain_build, datasets=endless), 1, 10)
        model = tiny_model(build=plain_build, datasets=lambda: endless(4), model__batch_size=4)
        trainer = SyncReplicatedTrainer(model, 2, batch="per_tower")
        trainer.train([LearningRate(lambda step: 0.02 * 0.9 ** (step / 10))], max_steps=10)
        assert trainer.outputs == pytest.approx(expected, rel=1e-3)
        assert trainer.describe()["global batch"] == "8 = 2 towers x 4"

    def test_many_steps_in_a_call_are_the_same_as_single_ones(self, whole: dict[str, list[bytes]]) -> None:
        single = SyncReplicatedTrainer(tiny_model(), 2)
        single.train([LearningRate(lambda step: 0.02 * 0.9 ** (step / 10)), StopOnNaN(), Losses()], max_steps=12)
        assert bits(single) == whole
        for name in ("bn0/moving_mean", "bn0/moving_variance"):  # plain statistics are averaged over the towers
            first, second = whole[name]
            assert first == second


class TestTowers:
    def test_a_tower_knows_itself_draws_for_itself_and_outputs_are_means(self) -> None:
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


class TestGuard:
    @pytest.mark.parametrize(("own_step", "example"), [(False, 0), (True, 7)])
    def test_a_bad_gradient_in_one_tower_changes_no_variable_of_any(self, example: int, own_step: bool) -> None:
        class OwnStep(SyncReplicatedTrainer):
            def train_step(self, inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
                with tf.GradientTape(persistent=True) as tape:
                    net = self.build(inputs, True)
                    first, second = tf.constant(0.0), net["loss"]
                    for variable in self.trainable.values():
                        first += tf.reduce_sum(variable**2)
                # The first update is finite and made before the second one fails.
                for loss in (first, second):
                    variables = list(self.trainable.values())
                    gradients = tape.gradient(loss, variables)
                    self.apply_gradients(list(zip(gradients, variables, strict=True)), loss=loss)
                return {"loss": net["loss"]}

        kind = OwnStep if own_step else SyncReplicatedTrainer
        trainer = kind(tiny_model(datasets=poisoned(4, example)), 2)
        good: list[Any] = []
        after_3 = At(3, lambda: good.append(bits(trainer)))
        with pytest.raises(NonFiniteError, match="in step 4"):
            trainer.train([LearningRate(lambda step: 0.02 * 0.9 ** (step / 10)), StopOnNaN(), after_3], max_steps=20)
        assert trainer.global_step == 3
        assert [bits(trainer)] == good


class TestResume:
    def test_the_same_towers_go_on_bit_for_bit(self, whole: dict[str, list[bytes]], experiment: Path) -> None:
        for steps in (5, 12):
            part = SyncReplicatedTrainer(tiny_model(), 2, experiment=experiment)
            rate = LearningRate(lambda step: 0.02 * 0.9 ** (step / 10))
            part.train([rate, StopOnNaN(), SaveOnExit()], max_steps=steps)
        assert part.run.resume_line().startswith("resumed at step 5")
        assert bits(part) == whole

    def test_another_number_of_towers_goes_on_and_says_so(self, experiment: Path) -> None:
        for towers, steps in ((1, 5), (2, 9), (1, 12)):
            kind = SimpleTrainer if towers == 1 else SyncReplicatedTrainer
            extra = {} if towers == 1 else {"towers": towers}
            trainer = kind(tiny_model(), experiment=experiment, **extra)
            trainer.train([SaveOnExit()], max_steps=steps)
            assert trainer.global_step == steps
            if steps > 5:
                assert "changed: " in trainer.run.resume_line()
                assert f"towers {3 - towers} -> {towers}" in trainer.run.resume_line()
            seeds = [
                np.asarray(copy).tolist()
                for name, variable in trainer.variables.items()
                if "seed" in name
                for copy in components(variable)
            ]
            assert len({tuple(seed) for seed in seeds}) == towers
            assert {seed[1] for seed in seeds} == {steps}


class TestErrors:
    def test_a_batch_size_that_does_not_divide(self) -> None:
        with pytest.raises(ConfigError, match=r"batch_size: 8 .* 3 towers; 9 would"):
            SyncReplicatedTrainer(tiny_model(), 3)

    def test_a_batch_that_does_not_divide(self) -> None:
        def datasets() -> dict[str, tf.data.Dataset]:
            arrays = {name: array[:11] for name, array in tiny_arrays().items()}
            return {"trn": tf.data.Dataset.from_tensor_slices(arrays).batch(8)}

        with pytest.raises(StepError, match=r"step 2 failed in the model: .*does not divide .* 2 .*drop_remainder"):
            SyncReplicatedTrainer(tiny_model(datasets=datasets), 2).train(max_steps=5)

    def test_wrong_options(self) -> None:
        with pytest.raises(ConfigError, match="reduction"):
            SyncReplicatedTrainer(tiny_model(), 2, reduction="magic")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="batch must be"):
            SyncReplicatedTrainer(tiny_model(), 2, batch="local")  # type: ignore[arg-type]


class TestLaunch:
    def test_towers_are_passed_on(self, tmp_path: Path) -> None:
        model = tiny_model(trainer__experiment_base_dir=str(tmp_path), model__num_steps=0)
        trainer = launch(model, towers="CPU:1,CPU:3", callbacks=[], fresh=True)
        assert isinstance(trainer, SyncReplicatedTrainer)
        assert trainer.describe()["devices"] == "CPU:1, CPU:3"

    def test_one_device_takes_the_simple_trainer(self, tmp_path: Path) -> None:
        model = tiny_model(trainer__experiment_base_dir=str(tmp_path), model__num_steps=0)
        assert type(launch(model, callbacks=[])) is SimpleTrainer

    def test_a_trainer_of_one_tower_takes_no_towers(self, tmp_path: Path) -> None:
        model = tiny_model(trainer__experiment_base_dir=str(tmp_path))
        with pytest.raises(ConfigError, match="SimpleTrainer has one tower only; derive it from SyncReplicatedTrainer"):
            launch(model, trainer=SimpleTrainer, towers=2)

    @pytest.mark.slow
    def test_the_command_line_makes_cpu_devices(self, tmp_path: Path) -> None:
        command = ["-m", "prototrain.cli", "run", "models.simple", "--towers", "cpu:2"]
        command += ["-s", "model.num_steps=20", "-s", f"trainer.experiment_base_dir={tmp_path}"]
        program = Program(command, cwd=ROOT)
        with program.stdout:
            said = program.stdout.read()
        assert program.wait() == 0, said
        assert "32 = 2 towers x 16" in said
