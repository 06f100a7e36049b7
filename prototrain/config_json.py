"""The earlier name of `prototrain.config.json_form`."""

from prototrain.config.json_form import as_text, encode, read_object

__all__ = ["as_text", "encode", "read_object"]
