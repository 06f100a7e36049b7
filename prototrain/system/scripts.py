"""What a script says of a run that changes nothing that is trained, or is compared by itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_LENGTHS = {"max_epoch", "max_steps"}  # of `Trainer.train`
_HARMLESS = {"allow_changed_data", "fresh", "resume", *_LENGTHS}
# Nothing changes where these are evaluated, unless there is a call in them.
_VALUES: tuple[type[ast.expr], ...] = (
    ast.Attribute,
    ast.Constant,
    ast.Dict,
    ast.FormattedValue,
    ast.JoinedStr,
    ast.List,
    ast.Name,
    ast.Subscript,
)
_VALUES += (ast.Tuple, ast.UnaryOp)


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
    given: list[tuple[ast.AST, ast.expr]] = [(one, one) for one in call.args]
    for keyword in call.keywords:
        if keyword.arg == "callbacks":
            given.append((keyword, keyword.value))
        elif keyword.arg in _HARMLESS and isinstance(keyword.value, ast.Constant):
            yield keyword
    if len(given) != 1:
        return
    argument, value = given[0]
    if isinstance(value, ast.Name):
        lists = [one for one in nodes if isinstance(one, ast.Assign) and _name_of(one.targets[0]) == value.id]
        uses = [one for one in nodes if isinstance(one, ast.Name) and one.id == value.id]
        if len(lists) == 1 and len(uses) == 2 and _are_callbacks(lists[0].value):  # and nobody else has to do with it
            yield from (argument, lists[0])
    elif _are_callbacks(value):
        yield argument


def _are_callbacks(value: ast.expr) -> bool:
    """Whether something is like `[Validation().every(steps=100), ModelSaver()]`."""
    return isinstance(value, ast.List) and all(isinstance(one, ast.Call) and _is_plain(one) for one in value.elts)


def _is_plain(value: ast.expr) -> bool:
    """Whether an expression only makes values, and objects of classes from them."""
    if isinstance(value, ast.Lambda):
        return True
    if isinstance(value, ast.Call):
        return _makes_object(value) and _has_plain_arguments(value)
    inner = [one for one in ast.iter_child_nodes(value) if isinstance(one, ast.expr)]
    return isinstance(value, _VALUES) and all(map(_is_plain, inner))


def _makes_object(call: ast.Call) -> bool:
    """Whether a class is called, as its name says, or a method of an object that is made there."""
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
        return _is_plain(call.func.value)
    return _name_of(call.func)[:1].isupper()


def _has_plain_arguments(call: ast.Call) -> bool:
    return all(map(_is_plain, [*call.args, *(keyword.value for keyword in call.keywords)]))


def _prints(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and _name_of(value.func) == "print" and _has_plain_arguments(value)


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
