"""Which of several processes this one is, and how they are connected."""

from prototrain.cluster.workers import COLLECTIVES, Exchange, Worker, connect, find_cluster, tf_config

__all__ = ["COLLECTIVES", "Exchange", "Worker", "connect", "find_cluster", "tf_config"]
