"""Actions, which run on a model from the command line.

An action is a module with a function `run(model, args)`. An optional function `add_arguments(parser)` adds arguments to
the command line; `args` is the parser's namespace.
"""

from prototrain.actions.restore import Restored, add_checkpoint, restore

__all__ = ["Restored", "add_checkpoint", "restore"]
