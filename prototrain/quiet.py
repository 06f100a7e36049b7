"""The earlier name of `prototrain.system.quiet`."""

from prototrain.system.quiet import import_tensorflow

__all__ = ["import_tensorflow"]
