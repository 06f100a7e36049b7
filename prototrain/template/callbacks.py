"""Callbacks of this model; `prototrain run` adds them to the callbacks of the config."""

from __future__ import annotations

from prototrain import Callback


class LargestWeight(Callback):
    """Records the largest absolute weight in TensorBoard, in metrics.jsonl and on the screen."""

    def trigger(self) -> None:
        """Records the scalar; `every` below sets the interval."""
        largest = max(float(abs(variable.numpy()).max()) for variable in self.trainer.model_variables.values())
        self.trainer.monitors.put_scalar("weights/largest", largest)


def callbacks() -> list[Callback]:
    """Returns the callbacks; called once at the start of a run."""
    return [LargestWeight().every(steps=100)]
