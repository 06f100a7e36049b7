"""What TensorFlow does not offer in public: to break off its collective operations, and to have its patience set."""

from __future__ import annotations

from prototrain.private_api.runtime import break_off_collectives as break_off
from prototrain.private_api.runtime import has_started, set_patience

__all__ = ["be_patient", "break_off", "has_started"]

_A_DAY = 24 * 3600 * 1000  # milliseconds


def be_patient(cluster: dict[str, list[str]], seconds: float) -> None:
    """Leave it to prototrain's own link to find out who is gone, before TensorFlow connects the workers.

    TensorFlow takes a worker for lost that was silent for ten seconds, as one that is stopped or swaps may be, and
    tells nobody which.

    Args:
        cluster: the addresses of the workers by kind of task, "chief" or "worker".
        seconds: to wait for all to be connected.
    """
    leader = "chief" if "chief" in cluster else "worker"
    set_patience(
        leader=f"/job:{leader}/replica:0/task:0",
        jobs=[(kind, len(addresses)) for kind, addresses in cluster.items()],
        connected_ms=int(1000 * seconds),
        silence_ms=_A_DAY,
    )
