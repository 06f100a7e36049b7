from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import estimator
from prototrain.callbacks import SaveOnExit
from prototrain.estimator import EvalSpec, OptimizerSpec, RunConfig, TrainSpec, feature_column
from prototrain.estimator.exporters import Exports, ThrottledValidation
from tests.tiny import CountingTrainer

RANDOM = np.random.default_rng(0)
SIZES = RANDOM.uniform(0, 2, 60).astype(np.float32)
KINDS = RANDOM.choice(["a", "b", "c"], 60)
WINS = (SIZES > 1) ^ (KINDS == "b")


def data() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(({"size": SIZES, "kind": KINDS}, WINS)).batch(20)


size = feature_column.numeric_column("size")
kind = feature_column.categorical_column_with_vocabulary_list("kind", ["a", "b", "c"])
halves = feature_column.bucketized_column(size, [1.0])


class Noting(estimator.Exporter):
    name = "noting"

    def __init__(self) -> None:
        self.calls: list[tuple[int, bool]] = []

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
    ) -> str | None:
        assert Path(checkpoint_path).is_dir() and export_path.endswith("export/noting")
        self.calls.append((eval_result["global_step"], is_the_final_export))
        return None


def test_wide_and_deep_with_exporters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    v1 = tf.compat.v1.train
    made = estimator.DNNLinearCombinedClassifier(
        tmp_path,
        [kind, feature_column.crossed_column([halves, "kind"], 20)],
        OptimizerSpec(keras.optimizers.Ftrl(0.5), lambda step: v1.exponential_decay(0.5, step, 10, 0.5)),
        [size, feature_column.embedding_column(kind, 2)],
        dnn_hidden_units=[4],
        config=RunConfig(tf_random_seed=1).replace(save_checkpoints_steps=10),
    )
    spec = feature_column.make_parse_example_spec([size, kind])
    noting = Noting()
    final = estimator.FinalExporter("final", estimator.build_parsing_serving_input_receiver_fn(spec))
    logging = estimator.LoggingTensorHook({"now": "global_step", "chance": "logistic", "loss": "loss"}, 10)
    train = TrainSpec(lambda: data().repeat(), max_steps=20, hooks=[logging])
    evaluate = EvalSpec(data, steps=None, exporters=[noting, final], start_delay_secs=0, throttle_secs=0)
    measured, exported = estimator.train_and_evaluate(made, train, evaluate)
    assert noting.calls == [(10, False), (20, True)] and measured["accuracy"] > 0.8
    said = capsys.readouterr().out
    assert "now = 10, chance = [[" in said and "now = 20" in said

    names = made.get_variable_names()
    assert {"dnn/hiddenlayer_0/kernel", "linear/kind/embeddings", "linear/bias_weights"} <= set(names)
    assert not [n for n in names if n.startswith(("optimizer/linear", "optimizer_2/dnn"))]
    assert float(made.get_variable_value("optimizer_2/learning_rate")) == pytest.approx(0.5 * 0.5**1.9)
    assert float(made.get_variable_value("optimizer/learning_rate")) == pytest.approx(0.001)

    served = tf.saved_model.load(str(exported[1])).signatures
    assert set(served) == {"serving_default", "classification", "regression", "predict"}


class FakeEstimator:
    """An estimator that exports an empty directory."""

    def __init__(self, directory: Path) -> None:
        self.model_dir, self.number = str(directory), 0

    def export_saved_model(self, base: str, *_: Any, **more: Any) -> str:
        self.number += 1
        place = Path(base) / str(self.number)
        place.mkdir(parents=True)
        return str(place)


class FakeModel:
    """A model whose evaluation at each step has a given loss."""

    stop = None

    def __init__(self, trainer: CountingTrainer, losses: Any) -> None:
        self.trainer, self.losses, self.evaluated = trainer, losses, list[int]()

    def take_over(self, trainer: Any) -> None:
        self.evaluated.append(trainer.global_step)

    def measure(self, steps: int | None) -> dict[str, Any]:
        step = self.trainer.global_step
        return {"loss": self.losses[step - 1], "global_step": step}


def test_evaluation_throttling() -> None:
    trainer = CountingTrainer()
    built: Any = FakeModel(trainer, [1.0] * 6)
    spec = EvalSpec(data, start_delay_secs=2, throttle_secs=3)
    trainer.train([ThrottledValidation(built, spec, lambda: trainer.global_step).every(steps=1)], max_steps=6)
    assert built.evaluated == [2, 5, 6]


def test_exporters(tmp_path: Path) -> None:
    def run(max_steps: int, losses: list[float]) -> list[Any]:
        trainer = CountingTrainer(experiment=tmp_path / "run")
        built: Any = FakeModel(trainer, losses)
        evaluation = ThrottledValidation(built, EvalSpec(data, start_delay_secs=0, throttle_secs=0))
        exports = Exports(fake, evaluation, exporters)
        trainer.train([evaluation.every(steps=1), exports.every(steps=1)], max_steps=max_steps)
        return exports.results

    fake: Any = FakeEstimator(tmp_path)
    receiver: Any = lambda: None  # noqa: E731
    best = estimator.BestExporter(serving_input_receiver_fn=receiver, exports_to_keep=2)
    exporters = [best, estimator.LatestExporter("latest", receiver, exports_to_keep=1)]
    assert run(4, [3.0, 4.0, 2.0, 1.0])[0] is not None
    assert sorted(path.name for path in (tmp_path / "export" / "best_exporter").iterdir()) == ["4", "6"]
    assert len(list((tmp_path / "export" / "latest").iterdir())) == 1
    note = json.loads((tmp_path / "export" / "best_exporter.json").read_text())
    assert note == {"step": 4, "exported": "6", "measured": {"loss": 1.0, "global_step": 4}}
    assert run(6, [9.0, 9.0, 9.0, 9.0, 1.5, 0.5])[0] is not None  # in a later evaluation: 1.5 is not better than 1.0
    assert json.loads((tmp_path / "export" / "best_exporter.json").read_text())["step"] == 6


@pytest.mark.parametrize("killed", [True, False])
def test_export_that_a_kill_has_prevented_is_made_after_the_resume(killed: bool, tmp_path: Path) -> None:
    def run(max_steps: int, exporters: list[Any]) -> None:
        trainer = CountingTrainer(experiment=tmp_path / "run")
        built: Any = FakeModel(trainer, [1.0, 2.0, 3.0])
        evaluation = ThrottledValidation(built, EvalSpec(data, start_delay_secs=0, throttle_secs=0))
        exports = [Exports(fake, evaluation, exporters).every(steps=1)] if exporters else []
        trainer.train([evaluation.every(steps=1), SaveOnExit(), *exports], max_steps=max_steps)

    fake: Any = FakeEstimator(tmp_path)
    receiver: Any = lambda: None  # noqa: E731
    (tmp_path / "export" / "best" / ".tmp-killed").mkdir(parents=True)
    run(1, [])
    if killed:
        record = tmp_path / "run" / "run.json"
        record.write_text(record.read_text().replace('"finished"', '"running"'))
    run(3, [estimator.BestExporter("best", receiver)])
    assert json.loads((tmp_path / "export" / "best.json").read_text())["step"] == (1 if killed else 2)
    assert [path.name for path in (tmp_path / "export" / "best").iterdir()] == ["1"]


def test_warm_start(tmp_path: Path) -> None:
    columns = [size, feature_column.indicator_column(kind)]
    first = estimator.DNNRegressor([4], columns, tmp_path / "first").train(data, steps=1)
    more: Any = {"optimizer": keras.optimizers.SGD(0.0), "config": RunConfig(tf_random_seed=9)}
    second = estimator.DNNRegressor([5], columns, tmp_path / "second", warm_start_from=first.model_dir, **more)
    second.train(data, steps=1)
    for name, same in {"dnn/logits/bias": True, "dnn/hiddenlayer_0/kernel": False}.items():
        assert np.array_equal(first.get_variable_value(name), second.get_variable_value(name)) is same
    assert second.eval_dir("x").endswith("summaries/eval_x")
