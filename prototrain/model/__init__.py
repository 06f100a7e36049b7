"""Models: loading by name, and building on towers with variables that all calls share (`prototrain.model.built`).

Importing this package does not import TensorFlow.
"""

from prototrain.model.loading import Model, ModelDict, ModelProtocol, import_user_module, load_model, require_module

__all__ = ["Model", "ModelDict", "ModelProtocol", "import_user_module", "load_model", "require_module"]
