"""Callbacks of this model's own; `prototrain run` adds them to those that the config asks for."""

from __future__ import annotations

from prototrain import Callback


class LargestWeight(Callback):
    """Records the largest weight, in TensorBoard, metrics.jsonl and on the screen."""

    def trigger(self) -> None:
        """Says what happens; `every` below says when."""
        largest = max(float(abs(variable.numpy()).max()) for variable in self.trainer.model_variables.values())
        self.trainer.monitors.put_scalar("weights/largest", largest)


def callbacks() -> list[Callback]:
    """Called once, when a run starts."""
    return [LargestWeight().every(steps=100)]
