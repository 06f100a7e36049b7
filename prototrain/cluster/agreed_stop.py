"""A stop that all workers make at the same step."""

from __future__ import annotations

from prototrain.system.signals import StopRequest


class AgreedStop(StopRequest):
    """Takes requests to stop, but shows them only once all workers have heard of them."""

    wanted: int | None = None

    def __enter__(self) -> AgreedStop:
        self.wanted = None
        super().__enter__()
        return self

    def request(self, signum: int) -> None:
        if self.wanted is None:
            self.wanted = signum

    def _pause(self) -> None:
        pass  # no worker may leave a call by itself; calls are short

    def agree(self, signum: int) -> None:
        """All workers know now: let this one stop."""
        super().request(signum if self.wanted is None else self.wanted)
