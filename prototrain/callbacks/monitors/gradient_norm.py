"""The length of the gradient as a scalar."""

from __future__ import annotations

from prototrain.callbacks.base import Callback
from prototrain.errors import CallbackError


class GradientNorm(Callback):
    """Adds ``gradient_norm`` to the scalars of each compiled step: the L2 norm of all gradients together.

    It is that of the gradients averaged over the towers, before any gradient processor. A `train_step` that applies
    gradients several times gives ``gradient_norm_2`` and so on.
    """

    chief_only = False

    def setup(self) -> None:
        if self.trainer.optimizer is None:
            raise CallbackError(
                f"GradientNorm needs a trainer that applies gradients; {type(self.trainer).__name__} has no optimizer"
            )
        self.trainer.record_gradient_norm = True
