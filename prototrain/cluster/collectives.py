"""What TensorFlow does not offer in public: to break off its collective operations, and to have its patience set."""

from __future__ import annotations

from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.eager import context

_INTERNAL = 13  # the error code
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
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{leader}/replica:0/task:0",
        heartbeat_timeout_in_ms=_A_DAY,
        cluster_register_timeout_in_ms=int(1000 * seconds),
        coordinated_jobs=[
            coordination_config_pb2.CoordinatedJob(name=kind, num_tasks=len(addresses))
            for kind, addresses in cluster.items()
        ],
    )


def break_off(why: str) -> None:
    """Make every collective operation fail, those under way and all that follow; there is no way back."""
    context.context().abort_collective_ops(_INTERNAL, why)


def has_started() -> bool:
    """Whether TensorFlow has made its devices, after which workers cannot be connected any more."""
    return bool(context.context()._initialized)  # `tf.config` would start it to answer
