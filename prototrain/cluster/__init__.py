"""Which of several processes this one is, how they are connected, and what becomes of them together."""

from prototrain.cluster.link import Left, Link
from prototrain.cluster.workers import COLLECTIVES, Worker, connect, find_cluster, own_link, tf_config

__all__ = ["COLLECTIVES", "Left", "Link", "Worker", "connect", "find_cluster", "own_link", "tf_config"]
