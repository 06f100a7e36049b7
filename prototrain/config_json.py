"""The earlier name of `prototrain.config.json_form`."""

from prototrain.config.json_form import encode, read_object
from prototrain.config.values import as_text

__all__ = ["as_text", "encode", "read_object"]
