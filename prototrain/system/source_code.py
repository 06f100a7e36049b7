"""What a Python file does where it is imported, however it is written."""

from __future__ import annotations

import ast
from collections.abc import Container
from pathlib import Path
from typing import Any

_HAS_BODY = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_SAID_ELSEWHERE = {"ctx", "kind", "type_comment"}


def code_in(file: Path, *, besides: Container[str] = ()) -> bytes:
    """The code of a file, nearly always the same in another version of Python; its text if it is none.

    Comments, layout and docstrings are left out, and so is what only the script does: the block below
    ``if __name__ == "__main__"``, a function `main`, and lines that call a `train`. What those make, such as callbacks,
    a run compares by itself.

    Args:
        file: of the user's own.
        besides: items of dicts with these keys are left out too, if they are plain values.
    """
    text = file.read_bytes()
    try:
        return repr(_described(ast.parse(text), besides)).encode()
    except (SyntaxError, ValueError, RecursionError):
        return text


def _described(node: Any, besides: Container[str]) -> Any:
    if isinstance(node, list):
        return [_described(item, besides) for item in node]
    if not isinstance(node, ast.AST):
        return node
    fields = {name: value for name, value in ast.iter_fields(node) if name not in _SAID_ELSEWHERE}
    if isinstance(node, _HAS_BODY):
        is_left_out = _is_of_script if isinstance(node, ast.Module) else _is_text
        fields["body"] = [statement for statement in fields["body"] if not is_left_out(statement)]
    elif isinstance(node, ast.Dict):
        items = [item for item in zip(node.keys, node.values, strict=True) if not _is_item_of(*item, besides)]
        fields = {"items": [item for pair in items for item in pair]}
    # Fields that have nothing in them are new in some versions.
    kept = [[name, _described(value, besides)] for name, value in fields.items() if value is not None and value != []]
    return [type(node).__name__, *kept]


def _is_of_script(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef):
        return statement.name == "main"
    if isinstance(statement, ast.If):
        return ast.unparse(statement.test).replace('"', "'") == "__name__ == '__main__'" and not statement.orelse
    call = statement.value if isinstance(statement, ast.Expr) else None
    is_training = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "train"
    return is_training or _is_text(statement)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_item_of(key: ast.expr | None, value: ast.expr, besides: Container[str]) -> bool:
    return isinstance(key, ast.Constant) and key.value in besides and isinstance(value, ast.Constant)
