"""The interval between saves that is worked out from what they cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prototrain.callbacks import JSONWriter, ModelSaver, RunOp
from prototrain.callbacks.saving.model_saver import SaveInterval, best_interval
from prototrain.config import Config
from prototrain.errors import CallbackError, ConfigError
from prototrain.launch import default_callbacks
from tests.tiny import CountingTrainer, tiny_model


@pytest.mark.parametrize(
    ("cost", "failure_seconds", "interval"),
    [(1.0, 20_000.0, 200.0), (4.0, 20_000.0, 400.0), (1.0, 20_000.0 / 64, 25.0), (100.0, 2.0, 100.0)],
)
def test_the_best_interval(cost: float, failure_seconds: float, interval: float) -> None:
    assert best_interval(cost, failure_seconds) == interval


def test_a_change_is_said_once() -> None:
    interval = SaveInterval(20_000.0, 1)
    line = interval.note(1.0)
    assert line == (
        "saving every 3 min 20 s: a save holds up the training for 1 s, and a failure is expected every 5 h 33 min "
        "(1 worker)"
    )
    assert interval.note(1.4) is None and interval.seconds == best_interval(1.2, 20_000.0)
    assert interval.note(90.0) is None  # an outlier
    assert interval.note(9.0) is not None
    assert "expected every 2 min 5 s (160 workers)" in str(SaveInterval(20_000.0, 160).note(1.0))


def test_a_run_saves_by_its_own_measure(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    time = [0.0]

    class Slow(ModelSaver):
        def _save(self) -> None:
            super()._save()
            time[0] += 2.0

    def tick() -> None:
        time[0] += 10.0

    saver = Slow(interval="auto", failures_per_day=86.4, max_to_keep=9, timer=lambda: time[0])
    callbacks = [RunOp(tick, run_before=False).every(steps=1), JSONWriter(), saver]
    CountingTrainer(experiment=experiment).train(callbacks, steps_per_epoch=5, max_steps=18)
    # A minute to the first; then sqrt(2 * 2 s * 1000 s) = 63 s, which is noticed behind step 14; and the end.
    saved = [int(path.name[5:]) for path in sorted((experiment / "checkpoints").iterdir())]
    assert saved == [7, 15, 18]
    assert capsys.readouterr().out.count("saving every 1 min 3 s: a save holds up the training for 2 s") == 1
    rows = map(json.loads, (experiment / "metrics.jsonl").read_text().splitlines())
    recorded = {row["step"]: row["checkpoint/interval"] for row in rows}
    assert recorded == pytest.approx({7: 60, 15: 63.2456, 18: 63.2456})


def test_the_config_asks_for_it() -> None:
    model = tiny_model(trainer__checkpoint_save_interval="auto", trainer__failures_per_day=2.0)
    (saver,) = (callback for callback in default_callbacks(model) if isinstance(callback, ModelSaver))
    assert saver._failure_seconds == 43_200
    with pytest.raises(ConfigError, match="expected int >= 1 or auto, got 'often'"):
        Config({"trainer.checkpoint_save_interval": "often"})


@pytest.mark.parametrize(
    "wrong",
    [{"interval": "often"}, {"failures_per_day": 1.0}, {"interval": "auto", "failures_per_day": 0}],
)
def test_what_has_no_meaning(wrong: dict[str, object]) -> None:
    with pytest.raises(CallbackError, match=r"ModelSaver: (interval|failures_per_day) must be"):
        ModelSaver(**wrong)  # type: ignore[arg-type]
    with pytest.raises(CallbackError, match=r"\.every\(\) has no place"):
        ModelSaver(interval="auto").every(steps=3)
