"""Actions: functions over a model.

An action is a module with `run(model, args)`. Its function `add_arguments(parser)`, if there is one, declares arguments
for the command line; `args` is the parser's namespace.
"""

from prototrain.actions.restore import Restored, add_checkpoint, restore

__all__ = ["Restored", "add_checkpoint", "restore"]
