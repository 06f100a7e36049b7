"""The earlier name of `prototrain.config.schema`."""

from prototrain.config.schema import REFERENCE, nearest, show

__all__ = ["REFERENCE", "nearest", "show"]
