from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prototrain import SimpleTrainer, default_callbacks
from prototrain.callbacks import LearningRate, SaveOnExit, Validation
from prototrain.callbacks.base import PeriodicTrigger
from prototrain.errors import CheckpointError, ConfigError, ExperimentError, ModelError
from prototrain.experiment import Experiment
from prototrain.launch import launch
from tests.tiny import tiny_build, tiny_datasets, tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Any]:
    """Makes a model whose experiment is `tmp_path/experiments/tiny`; keywords as `tiny_model`."""

    def make(**keywords: Any) -> Any:
        keywords.setdefault("model__num_steps", 4)
        return tiny_model(trainer__experiment_base_dir=str(tmp_path / "experiments"), **keywords)

    return make


def steps(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "experiments/tiny/checkpoints").glob("step-*"))


def failing_later(inputs: Any, train_phase: bool) -> Any:
    net = tiny_build(inputs, train_phase)
    if type(net.loss).__name__ != "EagerTensor":
        raise ValueError("the second call fails")
    return net


def test_default_callbacks_follow_the_config(model: Callable[..., Any]) -> None:
    callbacks = default_callbacks(
        model(trainer__validation_step_interval=7, trainer__validation_batches=2, trainer__print_interval=3)
    )
    names = "LearningRate Validation Summaries TensorBoardWriter JSONWriter ScalarPrinter ProgressBar ModelSaver"
    assert [callback.name for callback in callbacks] == [*names.split(), "SaveOnExit", "StopOnNaN"]
    validation = callbacks[1]
    assert isinstance(validation, PeriodicTrigger) and validation.intervals == {"steps": 7}
    assert isinstance(validation.callback, Validation) and validation.callback.batches == 2
    more = default_callbacks(model(trainer__keep_best="vld/accuracy", trainer__early_stopping="vld/loss"))
    assert [callback.name for callback in more[-2:]] == ["MinSaver", "EarlyStopping"]
    bare = model()
    del bare.config["model.lr_schedule.method"]
    assert not any(isinstance(callback, LearningRate) for callback in default_callbacks(bare))


def test_length_and_intervals_in_epochs(
    model: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"trainer__validation_step_interval": "2 epochs", "trainer__summary_save_interval": "1 epoch"}
    rate = {"model__lr_schedule__method": "cosine", "model__lr_schedule__cosine__value": 0.01}
    for epochs in (3, 4):  # the second run resumes the first
        trainer = launch(model(model__num_epochs=epochs, **keys, **rate))
        assert trainer.global_step == 5 * epochs
        assert trainer.outputs["learning_rate"] > 0
        assert float(trainer.optimizer.learning_rate) == pytest.approx(0.01 if epochs == 3 else 0.0, abs=0.01)
    assert [step for step, _ in trainer.monitors.history("trn/loss")] == [5, 10, 15, 20]
    assert [step for step, _ in trainer.monitors.history("vld/loss")] == [10, 15, 20]
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if " trn " in line and line.split()[0].isdigit()]) == 4
    # The one that is set last counts.
    config = trainer.model.config
    config.override("model.num_steps=21")
    assert "model.num_epochs" not in config and launch(trainer.model).global_step == 21
    config.update({"model.num_epochs": 5})
    assert "model.num_steps" not in config and config.total_steps() == 25


@pytest.mark.parametrize("given", [{"max_steps": 10}, {"max_epoch": 5, "steps_per_epoch": 2}])
def test_schedules_last_as_long_as_the_run(given: dict[str, int]) -> None:
    rate = {"model__lr_schedule__method": "cosine", "model__lr_schedule__cosine__value": 0.01}
    model = tiny_model(model__num_steps=1000, **rate)
    trainer = SimpleTrainer(model)
    rates = [callback for callback in default_callbacks(model) if isinstance(callback, LearningRate)]
    trainer.train(rates, **given)
    assert trainer.outputs["learning_rate"] == pytest.approx(0.005 * (1 + math.cos(math.pi * 0.9)))
    assert model.config.total_steps() == 1000


def test_epochs_of_unknown_length_are_an_error(model: Callable[..., Any]) -> None:
    def endless() -> Any:
        return {"trn": tiny_datasets()["trn"].repeat()}

    with pytest.raises(ConfigError, match=r"length of an epoch is not known; set trainer\.steps_per_epoch"):
        launch(model(model__num_epochs=3, datasets=endless))
    trainer = launch(model(model__num_epochs=3, trainer__steps_per_epoch=2, datasets=endless))
    assert trainer.global_step == 6 and trainer.epoch_num == 3


def test_run_resume_and_fresh_start(model: Callable[..., Any], tmp_path: Path) -> None:
    asked: list[str] = []

    def say_no(question: str) -> bool:
        asked.append(question)
        return False

    first = launch(model(), fresh=True, confirm=say_no)
    assert asked == []  # there was nothing to delete
    assert first.global_step == 4 and steps(tmp_path) == ["step-0000000004"]
    with pytest.raises(ConfigError, match="was not deleted, so the run was not started"):
        launch(model(), fresh=True, confirm=say_no)
    assert asked == [f"delete everything in {tmp_path / 'experiments/tiny'}?"]
    assert launch(model(model__num_steps=6)).run.start_row().startswith("resumed at step 4")
    assert steps(tmp_path) == ["step-0000000004", "step-0000000006"]
    thesis = tmp_path / "experiments/tiny/thesis.txt"
    thesis.touch()
    with pytest.raises(ExperimentError, match=r"does not look like an experiment \(it holds 'thesis.txt'\)"):
        launch(model(), fresh=True, confirm=say_no)
    assert len(asked) == 1
    thesis.unlink()
    fresh = launch(model(), fresh=True)
    assert fresh.run.start_row() == "fresh" and steps(tmp_path) == ["step-0000000004"]


def test_no_steps_and_a_missing_key(model: Callable[..., Any]) -> None:
    mine = model(model__num_steps=0)
    assert launch(mine).global_step == 0
    del mine.config["model.batch_size"]
    with pytest.raises(ConfigError, match=r"model.batch_size is required"):
        launch(mine)


def test_failure_before_the_run_changes_no_file(model: Callable[..., Any], tmp_path: Path) -> None:
    mistakes: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"build": failing_later}, ValueError),
        ({"build": lambda inputs, train_phase: {}}, ModelError),
        ({"model__trainable_variables__filter_regex": "nothing"}, ConfigError),
        ({"model__weights_load_path": "no/such/checkpoint"}, CheckpointError),
    ]
    for keywords, error in mistakes:
        with pytest.raises(error):
            launch(model(**keywords))
        assert not (tmp_path / "experiments").exists(), keywords
    launch(model(), callbacks=[SaveOnExit()])
    for keywords, error in mistakes:
        with pytest.raises(error):
            launch(model(**keywords), fresh=True)
        assert steps(tmp_path) == ["step-0000000004"], keywords


def test_used_experiment_is_refused(model: Callable[..., Any], tmp_path: Path) -> None:
    holder = Experiment(tmp_path / "experiments/tiny")
    holder.lock()
    for fresh in (False, True):
        with pytest.raises(ExperimentError, match=r"is in use by another run \(process \d+ on"):
            launch(model(), fresh=fresh)
    holder.unlock()


def test_weights_of_the_run_that_a_fresh_start_deletes(
    model: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch(model(), callbacks=[SaveOnExit()])
    path = str(tmp_path / "experiments/tiny")
    launch(model(model__weights_load_path=path), fresh=True, callbacks=[SaveOnExit()])
    assert "weights from" in capsys.readouterr().out
