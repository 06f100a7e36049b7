"""The earlier name of `prototrain.system.tracebacks`."""

from prototrain.system.tracebacks import cause, format_error

__all__ = ["cause", "format_error"]
