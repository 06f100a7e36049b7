from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
import tensorflow as tf

import prototrain
from prototrain import Callback, default_callbacks
from prototrain.callbacks import CallbackFactory
from prototrain.cli import main
from prototrain.errors import ConfigError, SweepError
from prototrain.launch import launch
from prototrain.sweeps import processes
from prototrain.sweeps.study import PRUNERS, Trial
from tests.test_cli import MODEL
from tests.tiny import fails, tiny_build, tiny_datasets, tiny_model

SPACE = {"model.batch_size": [8], "model.lr_schedule.constant.value": [0.01, 0.1]}
NAMES = ["tiny-0", "tiny-1"]


@pytest.fixture(autouse=True)
def _model(scratch: Path) -> None:
    (scratch / "m.py").write_text(MODEL, encoding="utf-8")


def model(**keywords: Any) -> Any:
    keywords = {"model__num_steps": 4, "trainer__validation_step_interval": 2, **keywords}
    made = tiny_model(**keywords)
    made.datasets = lambda: tiny_datasets(made.config["model.batch_size"])
    return made


def experiments() -> list[str]:
    return sorted(path.name for path in Path("experiments").iterdir() if path.is_dir() and path.name[0] != ".")


def test_grid_is_trained_once(capsys: pytest.CaptureFixture[str]) -> None:
    mine = model()
    before = dict(mine.config)
    verbosity = optuna.logging.get_verbosity()
    result = prototrain.sweep(mine, SPACE)
    assert optuna.logging.get_verbosity() == verbosity and dict(mine.config) == before
    assert experiments() == NAMES and [trial.state for trial in result.trials] == ["finished"] * 2
    assert result.best is not None and result.best.objective == min(trial.objective for trial in result.trials)
    printed = capsys.readouterr().out
    assert f"best       trial {result.best.number}\ndirectory  {result.best.directory}\n" in printed
    values = " ".join(f"{key}={value}" for key, value in result.best.values.items())
    assert re.search(rf"^values +{re.escape(values)}$", printed, re.MULTILINE)

    best = prototrain.sweep(mine, SPACE, mode="min").best
    printed = capsys.readouterr().out
    assert best == result.best and "runs:" not in printed and "2 trials, 2 of them begun" in printed

    # A separate run with these values gives the same result as the trial.
    mine.config.update(result.best.values)
    assert launch(mine).monitors.latest("vld/loss") == result.best.objective


def test_corrected_objective_counts_for_a_trained_trial() -> None:
    mine, space = model(), {**SPACE, "model.num_epochs": [1], "model.num_steps": [2]}  # the last one counts
    with pytest.raises(SweepError, match="no scalar 'vld/los'"):
        prototrain.sweep(mine, space, objective="vld/los")
    result = prototrain.sweep(mine, space)
    assert [(trial.state, trial.step) for trial in result.trials] == [("finished", 2)] * 2


def test_failed_trial_does_not_end_the_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    def build(inputs: Any, train_phase: bool) -> Any:
        net = tiny_build(inputs, train_phase)
        if mine.config["model.batch_size"] == 4:
            raise ValueError("no such\nsize")
        if mine.config["model.lr_schedule.constant.value"] == 0.1:
            net.loss = net.loss * tf.math.log(-1.0)
        return net

    mine = model(build=build)
    space = {**SPACE, "model.batch_size": [4, 8]}
    result = prototrain.sweep(mine, space)
    assert [trial.state for trial in result.trials] == ["failed", "failed", "finished", "failed"]
    assert result.trials[0].error == "ValueError: no such size"
    assert re.search(r"not finite in step 1 \(loss -?nan", str(result.trials[3].error))
    assert "trial 3 failed: the loss or a gradient is not finite" in capsys.readouterr().out
    study = optuna.load_study(study_name="tiny", storage="sqlite:///experiments/tiny.sweep.db")
    assert 'raise ValueError("no such\\nsize")' in study.trials[0].user_attrs["output"]
    mine.build = tiny_build  # a failed trial has ended
    assert [trial.state for trial in prototrain.sweep(mine, space).trials].count("failed") == 3


def test_error_if_all_trials_fail() -> None:
    mine = model(build=lambda inputs, train_phase: {})
    with pytest.raises(SweepError, match=r"no trial has finished; trial 0 failed: build\(\) must return 'loss'"):
        prototrain.sweep(mine, {"model.batch_size": [4, 8]})


def test_exit_code_of_a_failed_trial(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_in(trial: Trial, *_: Any) -> tuple[int, str]:
        trial.report({"vld/loss": (1, 0.5)})
        return int(trial.number > 0), "prototrain: error: no"

    monkeypatch.setattr(processes, "run_process", stand_in)
    options = ["-s", "model.num_epochs=1"]  # instead of the model's num_steps
    assert main(["sweep", "m", "--grid", "model.batch_size=4,5,8", *options]) == 1
    said = capsys.readouterr()
    assert "(3 of 3, best" in said.out and "prototrain: error: 2 of 3 trials failed: 1, 2; see above" in said.err


def test_stopped_sweep_resumes(capsys: pytest.CaptureFixture[str]) -> None:
    def stop(callback: Callback) -> None:
        if callback.trainer.require_experiment("stop").directory.name == "tiny-1":
            os.kill(os.getpid(), signal.SIGTERM)

    def stopping(model: Any) -> list[Callback]:
        return [*default_callbacks(model), CallbackFactory(trigger=stop).every(steps=3)]

    with pytest.raises(SystemExit) as exit_:
        prototrain.sweep(model(), SPACE, callbacks=stopping)
    assert exit_.value.code == 143 and experiments() == NAMES
    capsys.readouterr()
    result = prototrain.sweep(model(), SPACE, callbacks=default_callbacks)
    assert [trial.state for trial in result.trials] == ["finished"] * 2
    printed = capsys.readouterr().out
    assert "trial 0 runs" not in printed and printed.index("trial 1 runs") < printed.index("resumed at step 3; data: ")
    straight = model(trainer__experiment_name="straight")
    straight.config.update(result.trials[1].values)
    assert launch(straight).monitors.latest("vld/loss") == result.trials[1].objective


def test_bad_trials_stop_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRUNERS, "median", lambda: optuna.pruners.MedianPruner(n_startup_trials=1))

    def worse_each_time(model: Any) -> list[Callback]:
        trials.append(1.0 * len(trials))
        put = CallbackFactory(trigger=lambda self: self.trainer.monitors.put_scalar("mine", trials[-1]))
        return [put.every(steps=2), *default_callbacks(model)]

    trials: list[float] = []
    result = prototrain.sweep(
        model(), {"model.batch_size": "int:4..8"}, trials=2, objective="mine", callbacks=worse_each_time
    )
    assert [trial.state for trial in result.trials] == ["finished", "pruned"]
    assert result.trials[1].step == 2 and result.best == result.trials[0]
    assert "stopped after step 2: the sweep has pruned" in Path("experiments/tiny-1/train.log").read_text()


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"pruner": "mean"}, "pruner must be one of none, median, halving, hyperband"),
        ({"model": "m", "trainer": prototrain.SimpleTrainer}, "need the model itself, not its name"),
        ({"gpus_per_trial": 0.5}, "are for a cluster"),
        ({"cluster": "local"}, "a cluster needs the model's name"),
    ],
)
def test_errors_in_python(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises((SweepError, ConfigError), match=message):
        prototrain.sweep(**{"model": model(), "space": SPACE, **keywords})
    assert not Path("experiments").exists()


def test_config_that_cannot_be_passed_to_a_process() -> None:
    prototrain.load_model("m").config["model.lr_schedule.custom.fn"] = lambda step: 0.1
    with pytest.raises(SweepError, match=r"give the model itself: model.lr_schedule.custom.fn"):
        prototrain.sweep("m", {"model.batch_size": [2, 4]})


def test_search_needs_trials(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["sweep", "m", "--search", "model.batch_size=int:1..8"])
    assert "--search needs --trials N" in capfd.readouterr().err and not Path("experiments").exists()


def test_without_optuna(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    said = fails(capsys, "sweep", "m", "--grid", "model.batch_size=2,4")
    assert said.endswith("sweeps need Optuna, which is not installed: pip install 'prototrain[sweep]'\n")
