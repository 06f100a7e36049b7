"""What a Python file says, however it is written."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from prototrain.system.scripts import said_of_the_run

OF_CODE: Final = "code "
"""Ahead of a digest of code: no message shows what such a digest was and is."""
_HAS_BODY = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_SAID_ELSEWHERE = {"ctx", "kind", "type_comment"}


def code_in(file: Path, *, besides: Iterable[str] = ()) -> bytes:
    """A digest of the code of a file, nearly always the same in another version of Python; its text if it is none.

    Comments, layout and docstrings are left out, and what a script says of how and where a run is made; see
    `said_of_the_run`.

    Args:
        file: of the user's own.
        besides: items of dicts with these keys are left out too, and values that are assigned to them.
    """
    return _code(file.read_bytes(), frozenset(besides))


@functools.lru_cache(maxsize=4096)  # each run of a process asks for all modules
def _code(text: bytes, besides: frozenset[str]) -> bytes:
    try:
        tree = ast.parse(text)
        left_out = set(map(id, said_of_the_run(tree)))
        said = repr(_described(tree, besides, left_out))
        return sha256(said.encode()).digest()
    except (SyntaxError, ValueError, RecursionError):
        return text


def _described(node: Any, besides: frozenset[str], left_out: set[int]) -> Any:
    if isinstance(node, list):
        return [_described(item, besides, left_out) for item in node if id(item) not in left_out]
    if not isinstance(node, ast.AST):
        return node
    fields = {name: value for name, value in ast.iter_fields(node) if name not in _SAID_ELSEWHERE}
    if isinstance(node, _HAS_BODY):
        fields["body"] = [one for one in fields["body"] if not (_is_text(one) or _assigns(one, besides))]
    elif isinstance(node, ast.Dict):
        items = [item for item in zip(node.keys, node.values, strict=True) if not _is_item(*item, besides)]
        fields = {"items": [item for pair in items for item in pair]}
    # Fields that have nothing in them are new in some versions.
    described = [[name, _described(value, besides, left_out)] for name, value in fields.items()]
    return [type(node).__name__, *(one for one in described if one[1] is not None and one[1] != [])]


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _assigns(statement: ast.stmt, besides: frozenset[str]) -> bool:
    """Whether a statement is like `config["model.num_steps"] = 100`."""
    if not (isinstance(statement, ast.Assign) and len(statement.targets) == 1):
        return False
    target = statement.targets[0]
    return isinstance(target, ast.Subscript) and _is_item(target.slice, statement.value, besides)


def _is_item(key: ast.expr | None, value: ast.expr, besides: frozenset[str]) -> bool:
    return isinstance(key, ast.Constant) and key.value in besides and isinstance(value, ast.Constant)
