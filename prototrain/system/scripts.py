"""What a script says of a run that changes nothing that is trained, or is compared by itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_LENGTHS = {"max_epoch", "max_steps"}  # of `Trainer.train`
_HARMLESS = {"allow_changed_data", "fresh", "resume", *_LENGTHS}
_CONSTANTS = (ast.Constant, ast.Dict, ast.Lambda, ast.List, ast.Tuple, ast.UnaryOp)
# Without a call in it, to evaluate one of these changes nothing.
_VALUES = (*_CONSTANTS, ast.Attribute, ast.FormattedValue, ast.JoinedStr, ast.Name, ast.Subscript)


def said_of_the_run(tree: ast.Module) -> Iterator[ast.AST]:
    """The parts of a script's code that say how long, where and with which callbacks its one run is made, as far as
    they are written out; classes of callbacks; and what prints plain values.

    The code of callbacks, and what they are made with, is compared by itself.
    """
    nodes = list(ast.walk(tree))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    for node in nodes:
        if (isinstance(node, ast.Expr) and _prints(node.value)) or _imports_callbacks(node) or _is_callback(node):
            yield node
    for call in calls:
        if _name_of(call.func).endswith("Trainer"):
            yield from (one for one in call.keywords if one.arg == "experiment" and isinstance(one.value, ast.Constant))
    trainings = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "train"]
    trainings = [call for call in trainings if any(one.arg in _LENGTHS for one in call.keywords)] or trainings
    if len(trainings) == 1:
        yield from _said_by_training(trainings[0], nodes)


def _said_by_training(call: ast.Call, nodes: list[ast.AST]) -> Iterator[ast.AST]:
    yield from (one for one in call.keywords if one.arg in _HARMLESS and isinstance(one.value, ast.Constant))
    for value in [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "callbacks")]:
        if isinstance(value, ast.Name):
            lists = [one for one in nodes if isinstance(one, ast.Assign) and _name_of(one.targets[0]) == value.id]
            uses = [one for one in nodes if isinstance(one, ast.Name) and one.id == value.id]
            if len(lists) == 1 and len(lists[0].targets) == 1 and len(uses) == 2:  # nobody else has to do with it
                yield from _callbacks_in(lists[0].value)
        else:
            yield from _callbacks_in(value)


def _callbacks_in(value: ast.expr) -> list[ast.expr]:
    """The parts of a list that are like `Validation().every(steps=100)`."""
    return [one for one in value.elts if _makes_object(one)] if isinstance(value, ast.List) else []


def _makes_object(value: ast.expr) -> bool:
    """Whether a class is called, as its name says, with constants, or a method of an object that is made so.

    What is called with an object of the user's may change that.
    """
    if not (isinstance(value, ast.Call) and _has_only(_CONSTANTS, value)):
        return False
    if isinstance(value.func, ast.Attribute) and isinstance(value.func.value, ast.Call):
        return _makes_object(value.func.value)
    return _name_of(value.func)[:1].isupper()


def _prints(value: ast.expr) -> bool:
    is_print = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "print"
    return isinstance(value, ast.Call) and is_print and _has_only(_VALUES, value)


def _has_only(kinds: tuple[type[ast.expr], ...], call: ast.Call) -> bool:
    return all(_is_made_of(kinds, one) for one in [*call.args, *(keyword.value for keyword in call.keywords)])


def _is_made_of(kinds: tuple[type[ast.expr], ...], value: ast.expr) -> bool:
    inner = [one for one in ast.iter_child_nodes(value) if isinstance(one, ast.expr)]
    is_lambda = isinstance(value, ast.Lambda)
    return isinstance(value, kinds) and (is_lambda or all(_is_made_of(kinds, one) for one in inner))


def _imports_callbacks(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.ImportFrom)
        and str(node.module).startswith("prototrain.callbacks")
        and all(one.asname is None for one in node.names)
    )


def _is_callback(node: ast.AST) -> bool:
    """Whether a class derives from `Callback`, as its bases are called, and nothing else has to do with it."""
    return (
        isinstance(node, ast.ClassDef) and not node.decorator_list and list(map(_name_of, node.bases)) == ["Callback"]
    )


def _name_of(value: ast.expr) -> str:
    """What a name or an attribute is called last."""
    return value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""
