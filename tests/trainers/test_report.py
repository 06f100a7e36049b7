from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from prototrain.callbacks import JSONWriter, ProgressBar, SaveOnExit, Summaries, TensorBoardWriter
from prototrain.experiment.record import read_attempts
from prototrain.trainers.report import closing, opening
from tests.tiny import At, tiny_datasets, tiny_trainer


def test_opening_table(experiment: Path) -> None:
    tables: list[str] = []
    trainer = tiny_trainer(experiment)
    trainer.train([At(1, lambda: tables.append(opening(trainer))), SaveOnExit()], max_steps=3, steps_per_epoch=2)
    rows = dict(line.split("  ", 1) for line in tables[0].strip().splitlines())
    rows = {name: value.strip() for name, value in rows.items()}
    order = ["model", "trainer", "towers", "devices", "precision", "data", "global batch", "steps", "epochs"]
    assert list(rows)[:9] == order
    assert (rows["model"], rows["trainer"], rows["towers"]) == ("tiny", "SimpleTrainer", "1")
    assert (rows["global batch"], rows["steps"], rows["epochs"]) == ("8 = 1 tower x 8", "3", "2 of 2 steps")
    assert (rows["directory"], rows["start"], rows["precision"]) == (str(experiment), "fresh", "float32")
    assert (rows["data"], rows["optimizer"]) == ("trn 5 batches, vld 3 batches", "Adam, learning rate 0.01")


def test_layers_are_printed_once(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_trainer(experiment).train([SaveOnExit()], max_steps=2)
    said = capsys.readouterr().out
    assert "70 parameters, 56 trained, 288 bytes" in said and "fc0 " in said
    tiny_trainer(experiment).train([SaveOnExit()], max_steps=3)
    assert "parameters" not in capsys.readouterr().out
    assert (experiment / "train.log").read_text().count("70 parameters") == 1


def test_completed_run(experiment: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prototrain.callbacks.profiling.progress_bar.in_notebook", lambda: True)
    for length in ({"model__num_steps": 4}, {"model__num_steps": 4}, {"model__num_epochs": 1}):
        trainer = tiny_trainer(experiment, **length, trainer__steps_per_epoch=4)
        trainer.train([ProgressBar(), SaveOnExit()])
        said = capsys.readouterr()
        assert ("nothing to do: step 4 of 4 is done; raise model.num_" in said.out) is ("steps/s" not in said.err)
        assert trainer.global_step == 4
    assert "raise model.num_epochs or use --fresh" in said.out


def test_closing_table(experiment: Path) -> None:
    trainer = tiny_trainer(experiment)
    trainer.train([Summaries().every(steps=1), TensorBoardWriter(), JSONWriter(), SaveOnExit()], max_steps=2)
    trainer.monitors.put_scalars({"loss": 0.25, "accuracy": 1.0}, "vld")
    assert (closing(trainer) or "").strip().splitlines() == [
        "best         vld/loss 0.25 at step 2",
        f"checkpoints  {experiment}/checkpoints (newest: step-0000000002)",
        f"metrics      {experiment}/metrics.jsonl",
        f"log          {experiment}/train.log",
        f"next         prototrain report {experiment}",
        f"             tensorboard --logdir {experiment}/summaries",
    ]


def test_slow_dataset_is_named(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def work(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        # Like a slow disk: some milliseconds that depend on the batch.
        x = tf.random.stateless_normal([400, 400], [1, tf.cast(batch["y"][0], tf.int32)])
        for _ in range(3):
            x = tf.linalg.matmul(x, x) / 1000.0
        return {**batch, "x": batch["x"] + 0.0 * tf.reduce_sum(x)}

    trainer = tiny_trainer(experiment, datasets=lambda: {"trn": tiny_datasets()["trn"].map(work)})
    trainer.train([], max_steps=40)
    assert "(input " in capsys.readouterr().out
    (part,) = read_attempts(experiment / "run.json")
    assert part.loop["waiting for input"] > 0.25 * part.loop["steps"] > 0
    assert part.loop["tracing"] > 0
