from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from prototrain import SimpleTrainer
from prototrain.callbacks import LearningRate, SaveOnExit, StopOnNaN
from prototrain.errors import NonFiniteError
from prototrain.trainers.replicated import SyncParameterServerTrainer
from tests.tiny import At, tiny_model
from tests.trainers.test_replicated import bits, endless, plain_build, poisoned


def test_towers_give_the_results_of_one() -> None:
    keywords: dict[str, Any] = {"build": plain_build, "datasets": endless, "model__weight_decay__value": 0.1}
    keywords["model__clip_gradients__global_norm"] = 0.05
    one, many = SimpleTrainer(tiny_model(**keywords)), SyncParameterServerTrainer(tiny_model(**keywords), 2)
    for trainer in (one, many):
        trainer.train([LearningRate(lambda step: 0.02 * 0.9 ** (step / 10))], max_steps=30)
    assert many.outputs == pytest.approx(one.outputs, rel=1e-3, abs=1e-4)
    for name, variable in one.variables.items():
        other = tf.convert_to_tensor(many.variables[name])
        np.testing.assert_allclose(other, variable, rtol=1e-3, atol=1e-4, err_msg=name)
    assert many.evaluate("vld") == pytest.approx(one.evaluate("vld"), rel=1e-3, abs=1e-4)


def test_variables_lie_where_they_are_told_to() -> None:
    trainer = SyncParameterServerTrainer(tiny_model(), 2, parameter_device="CPU:3")
    assert {variable.device[-5:] for variable in trainer.trainable.values()} == {"CPU:3"}


def test_a_bad_gradient_in_one_tower_changes_no_variable() -> None:
    trainer = SyncParameterServerTrainer(tiny_model(datasets=poisoned(4, 6)), 2)
    good: list[Any] = []
    with pytest.raises(NonFiniteError, match="in step 4"):
        trainer.train([StopOnNaN(), At(3, lambda: good.append(bits(trainer)))], max_steps=20)
    assert [bits(trainer)] == good


def test_a_resume_is_exact(experiment: Path) -> None:
    whole = SyncParameterServerTrainer(tiny_model(), 2)
    whole.train([StopOnNaN()], max_steps=8)
    for steps in (3, 8):
        part = SyncParameterServerTrainer(tiny_model(), 2, experiment=experiment)
        part.train([StopOnNaN(), SaveOnExit()], max_steps=steps)
    assert bits(part) == bits(whole)
    seeds = {bits(part)[name][0] for name in bits(part) if "seed_generator_state" in name}
    assert len(seeds) == 2
