from __future__ import annotations

import re
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from prototrain import Callback, StopTraining
from prototrain.callbacks import SaveOnExit
from prototrain.errors import CallbackError, ExperimentError
from prototrain.experiment.record import Attempt, read_attempts
from tests.tiny import At, CountingTrainer, raising, tiny_config


def parts(experiment: Path) -> list[Attempt]:
    return read_attempts(experiment / "run.json")


ENDS = [
    (StopTraining("good enough"), "finished", "good enough", None),
    (StopTraining(), "finished", "a callback asked for it", None),
    (ValueError("two\nlines"), "failed", "ValueError: two lines", ValueError),
    (CallbackError("a\nb"), "failed", "a b (tiny.py, line LINE, in trigger_step of At)", CallbackError),
    (signal.SIGINT, "interrupted", "SIGINT", KeyboardInterrupt),
    (signal.SIGTERM, "interrupted", "SIGTERM", SystemExit),
    (SystemExit(7), "interrupted", "SystemExit: 7", SystemExit),
]


@pytest.mark.parametrize(("event", "state", "reason", "raised"), ENDS, ids=[f"{end[0]!r}" for end in ENDS])
def test_outcomes(event: Any, state: str, reason: str, raised: Any, experiment: Path) -> None:
    trainer = CountingTrainer(experiment=experiment)
    is_signal = isinstance(event, signal.Signals)
    happens = At(3, (lambda: trainer.stop.request(event)) if is_signal else raising(event))
    with nullcontext() if raised is None else pytest.raises(raised):
        trainer.train([happens], max_steps=5)
    (part,) = parts(experiment)
    assert re.sub(r"line \d+", "line LINE", part.reason or "") == reason
    assert (part.state, part.first_step, part.step, part.total_steps) == (state, 0, 3, 5)
    assert part.seconds is not None and part.start == "fresh" and list(part.callbacks) == ["At"]


def test_running_state_and_host(experiment: Path) -> None:
    seen: list[list[Attempt]] = []

    class Look(Callback):
        def before_train(self) -> None:
            seen.append(parts(experiment))

    CountingTrainer(experiment=experiment).train([Look(), SaveOnExit()], max_steps=2)
    CountingTrainer(experiment=experiment).train([Look(), SaveOnExit()], max_steps=4)
    assert [[part.state for part in found] for found in seen] == [["running"], ["finished", "running"]]
    assert [(part.first_step, part.step, part.seconds) for part in seen[1]][1] == (2, None, None)
    first, second = parts(experiment)
    assert (first.step, first.reason, second.first_step, second.step) == (2, None, 2, 4)
    assert second.start == "resumed at step 2"


def test_changes_from_the_models_defaults(experiment: Path) -> None:
    trainer = CountingTrainer(experiment=experiment)
    trainer.config = tiny_config()
    trainer.train(max_steps=1)
    assert parts(experiment)[0].changes is None
    trainer.config.keep_defaults()
    trainer.config["model.num_steps"] = 1
    trainer.config["own.key"] = [1, 2]
    trainer.train(max_steps=2)
    assert parts(experiment)[1].changes == [["model.num_steps", 2, 20], ["own.key", [1, 2], "(unset)"]]


@pytest.mark.parametrize("content", ["", "[]", '{"parts": [{}]}'])
def test_damaged_record_is_rewritten(content: str, experiment: Path) -> None:
    experiment.mkdir()
    (experiment / "run.json").write_text(content)
    with pytest.raises(ExperimentError, match=r"run\.json is damaged"):
        parts(experiment)
    CountingTrainer(experiment=experiment).train(max_steps=1)
    assert len(parts(experiment)) == 1


def test_unwritable_record_does_not_end_the_run(experiment: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (experiment / "run.json").mkdir(parents=True)
    with pytest.raises(ExperimentError, match=r"cannot read .*run\.json: Is a directory"):
        parts(experiment)
    trainer = CountingTrainer(experiment=experiment)
    trainer.train(max_steps=2)
    assert trainer.global_step == 2
    assert f"WARNING: cannot write {experiment}/run.json: Is a directory" in capfd.readouterr().out
