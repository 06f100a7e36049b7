"""The earlier name of `prototrain.system.files`."""

from prototrain.system.files import sync, write_atomic

__all__ = ["sync", "write_atomic"]
