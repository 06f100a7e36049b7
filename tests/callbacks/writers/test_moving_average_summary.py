from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prototrain.callbacks import MovingAverageSummary, SaveOnExit
from prototrain.errors import CallbackError
from tests.tiny import CountingTrainer, Losses, tiny_trainer


def expected(losses: list[float], decay: float) -> float:
    weights = [decay**age for age in range(len(losses))]
    return sum(w * x for w, x in zip(weights, reversed(losses), strict=True)) / sum(weights)


@pytest.mark.parametrize("make", [CountingTrainer, tiny_trainer])
def test_the_average_over_all_steps(make: Any) -> None:
    trainer, losses = make(), Losses()
    trainer.train([MovingAverageSummary("loss", decay=0.7).every(steps=4), losses], max_steps=8)
    values = list(losses.by_step.values())
    assert trainer.monitors.history("trn/loss_average") == [
        (4, pytest.approx(expected(values[:4], 0.7))),
        (8, pytest.approx(expected(values, 0.7))),
    ]


def test_it_survives_a_resume(tmp_path: Path) -> None:
    """With a compiled trainer, tests/callbacks/writers/test_tensor_summaries.py has it."""

    def run(name: str, max_steps: int) -> Any:
        trainer = CountingTrainer(experiment=tmp_path / name)
        trainer.train([MovingAverageSummary("loss").every(steps=10), SaveOnExit()], max_steps=max_steps)
        return trainer.monitors.latest("trn/loss_average")

    run("b", 3)
    assert run("a", 10) == run("b", 10)


def test_mistakes() -> None:
    with pytest.raises(CallbackError, match="name the scalars"):
        MovingAverageSummary()
    with pytest.raises(CallbackError, match="no scalar lost; it has: loss"):
        CountingTrainer().train([MovingAverageSummary("lost")], max_steps=1)
