"""The earlier name of `prototrain.cluster.servers`."""

from prototrain.cluster.servers import connect

__all__ = ["connect"]
