"""Test that the model learns; run it with pytest."""

from __future__ import annotations

from prototrain import SimpleTrainer, load_model
from prototrain.callbacks import Validation


def test_it_learns() -> None:
    trainer = SimpleTrainer(load_model("prototrain.template"))
    trainer.train([Validation(batches=0).every(steps=100)], max_steps=200)
    (_, early), (_, late) = trainer.monitors.history("vld/loss")
    assert late < early
