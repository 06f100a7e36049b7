"""Hooks under the names that tensorpack has for them: nobody calls these here, so that a callback would do nothing."""

from __future__ import annotations

from prototrain.callbacks.base import Callback, ProxyCallback
from prototrain.errors import CallbackError

_TRACED = (
    "which may use TensorFlow operations only; for values of a step, name them in watches() and read trainer.watched "
    "in trigger()"
)
_HOOKS = {
    "_setup_graph": "setup()",
    "_before_train": "before_train()",
    "_after_train": "after_train()",
    "_before_epoch": "before_epoch()",
    "_after_epoch": "after_epoch()",
    "_before_run": f"before_run(), {_TRACED}",
    "_after_run": f"after_run(outputs), {_TRACED}",
    "_trigger_step": "trigger_step()",
    "_trigger_epoch": "trigger_epoch()",
    "_trigger": "trigger()",
    "process_scalar": "put_scalar(name, value, step)",
    "process_image": "put_event(prefix, event)",
    "process_event": "put_event(prefix, event)",
    "process_summary": "put_event(prefix, event)",
    "_get_value_to_set": "new_value()",
    "_chief_only": "chief_only",
}


def check_hooks(callback: Callback) -> None:
    """Fail at a class that defines a hook under tensorpack's name.

    A method of that name which other methods of the class call is a helper of the user's own, and so is one beside the
    hook of today's name.

    Raises:
        CallbackError: it names the method, and what to call it.
    """
    own = [kind for kind in type(callback).__mro__ if not kind.__module__.startswith(("prototrain.", "builtins"))]
    for kind in own:
        for name in _HOOKS.keys() & vars(kind).keys():
            now = _HOOKS[name]
            if any(now.partition("(")[0] in vars(other) for other in own) or _is_called(name, own):
                continue
            what = "sets" if name == "_chief_only" else "defines"
            raise CallbackError(f"{kind.__name__} {what} {name}, which nobody asks for here; call it {now}")
    if isinstance(callback, ProxyCallback):
        check_hooks(callback.callback)


def _is_called(name: str, kinds: list[type]) -> bool:
    """Whether a method that does not itself have one of these names uses this one."""
    methods = [method for kind in kinds for key, method in vars(kind).items() if key not in _HOOKS]
    return any(name in code.co_names for method in methods if (code := getattr(method, "__code__", None)) is not None)
