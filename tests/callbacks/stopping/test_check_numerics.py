from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prototrain.callbacks import CallbackFactory, CheckNumerics, ModelSaver, SaveOnExit
from prototrain.callbacks.base import Priority
from prototrain.errors import NonFiniteError
from tests.tiny import CountingTrainer, tiny_trainer


def test_bad_weights_end_the_run_before_they_are_saved(experiment: Path) -> None:
    def spoil(self: CallbackFactory) -> None:
        if self.trainer.global_step == 6:
            kernel = self.trainer.state["logits/kernel"]
            kernel.assign(np.full(kernel.shape, np.nan))

    trainer = tiny_trainer(experiment)
    spoiler = CallbackFactory(trigger=spoil, priority=Priority.EVALUATE)
    callbacks = [spoiler.every(steps=1), CheckNumerics().every(steps=2), ModelSaver().every(steps=2), SaveOnExit()]
    with pytest.raises(NonFiniteError, match="after step 6, logits/kernel is not finite"):
        trainer.train(callbacks, max_steps=10)
    assert sorted(path.name for path in (experiment / "checkpoints").iterdir()) == [
        "failed-0000000006",
        "step-0000000002",
        "step-0000000004",
    ]


@pytest.mark.parametrize("trainer", [CountingTrainer, tiny_trainer])
def test_good_weights_pass(trainer: type) -> None:
    made = trainer()
    made.train([CheckNumerics().every(steps=2)], max_steps=4)
    assert made.global_step == 4
