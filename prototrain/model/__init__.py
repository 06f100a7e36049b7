"""A model: found by its name, built once on some towers (`prototrain.model.built`), its variables shared by all calls.

This page needs no TensorFlow.
"""

from prototrain.model.loading import Model, ModelDict, ModelProtocol, import_own, load_model, require_module

__all__ = ["Model", "ModelDict", "ModelProtocol", "import_own", "load_model", "require_module"]
