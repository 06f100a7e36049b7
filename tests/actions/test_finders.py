from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from prototrain.actions import find_batch_size, find_lr
from prototrain.actions.find_batch_size import Measured, measure, suggest
from prototrain.actions.find_lr import suggest_valley
from prototrain.errors import ConfigError
from prototrain.trainers.tower import SimpleTrainer
from tests.actions.conftest import model_in
from tests.tiny import tiny_datasets, tiny_model


def run(action: ModuleType, model: Any, *arguments: str) -> None:
    parser = ArgumentParser()
    action.add_arguments(parser)
    action.run(model, parser.parse_args(arguments))


def test_find_lr(trained: SimpleTrainer, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def line(inputs: Any, train_phase: bool) -> Any:
        x = tf.Variable([4.0, 4.0], name="x")
        return {"loss": tf.reduce_sum(x**2) + 0.0 * tf.reduce_sum(inputs["x"])}

    before = {path: path.stat().st_mtime_ns for path in base.rglob("*")}
    picture = tmp_path / "lr.svg"
    model = model_in(base, build=line, model__optimizer__method="sgd")
    run(find_lr, model, "--start", "1e-4", "--end", "10", "--steps", "60", "-o", str(picture))
    out = capsys.readouterr().out
    rate = float(out.partition("try -s model.lr_schedule.constant.value=")[2].split()[0])
    assert 0.005 < rate < 1.0  # with a rate of 1, gradient descent on x ** 2 diverges
    assert "the loss is 4 times as high as at its lowest" in out and picture.read_text().startswith("<?xml")
    assert {path: path.stat().st_mtime_ns for path in base.rglob("*")} == before
    with pytest.raises(ConfigError, match="--start must be above 0 and below --end, and --steps at least 20"):
        run(find_lr, model, "--start", "2", "--end", "1")


def test_suggestion_equals_fastai() -> None:
    losses = [9.0, 9.5, 9.0, 8.0, 7.0, 7.5, 5.0, 3.0, 2.0, 1.5, 1.4, 2.0, 5.0]
    points = [(10.0**number, loss) for number, loss in enumerate(losses)]
    # The longest run of falling losses has 8 members and ends at number 10: 10 - 8 + int(8 / 3) + int(8 / 6).
    assert suggest_valley(points) == (10.0**5, 7.5)


def test_find_batch_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_model()
    model.datasets = lambda: tiny_datasets(model.config["model.batch_size"])
    picture = tmp_path / "size.png"
    run(find_batch_size, model, "--start", "32", "--steps", "2", "-o", str(picture))
    out = capsys.readouterr().out
    assert "ended because the data gave a batch of 40, not 64" in out
    assert "try -s model.batch_size=" in out and picture.stat().st_size > 0 and model.config["model.batch_size"] == 8
    with pytest.raises(ConfigError, match=r"model.batch_size is 4, .*'trn' have 8 examples"):
        run(find_batch_size, tiny_model(), "--start", "4")


def test_sizes_that_do_not_fit_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter([140, 220])
    monkeypatch.setattr(find_batch_size, "_peak", lambda: next(peaks) * 2**20)
    monkeypatch.setattr(find_batch_size, "_speed", lambda trainer, size, steps: 1.0)
    model = tiny_model()
    model.datasets = lambda: tiny_datasets(model.config["model.batch_size"])
    monkeypatch.setattr(find_batch_size.psutil, "virtual_memory", lambda: SimpleNamespace(available=100 * 2**20))
    found, end = measure(model, 10, 4096, 1)
    assert [one.size for one in found] == [10, 20]
    assert end == "the next size would take some 160 MiB more, and 100 MiB are free"


def test_smallest_fast_size_is_suggested() -> None:
    found = [Measured(size, speed, 0) for size, speed in ((8, 50.0), (16, 96.0), (32, 100.0), (64, 99.0))]
    assert suggest(found).size == 16
