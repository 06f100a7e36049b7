"""What a function's code does, and what it names of what is around it."""

from __future__ import annotations

import dis
import functools
import sys
from types import CodeType, FunctionType
from typing import Any

_NAMES = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"}
_NAMES |= {"LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS"}  # in a class's body, from Python 3.12 on
ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
"""Instructions that take an attribute."""

_HAS_DOC = 0x4000000  # a flag of code, from Python 3.14 on


def done_by(constant: Any) -> str:
    """What a function's code does, wherever it is written; of its constants the types too, and no order of a set."""
    if isinstance(constant, CodeType):
        counts = constant.co_argcount, constant.co_posonlyargcount, constant.co_kwonlyargcount
        numbers = constant.co_flags & ~_HAS_DOC, *counts
        names = constant.co_names, constant.co_varnames, constant.co_freevars, constant.co_cellvars
        caught = f"{constant.co_exceptiontable!r}" * bool(constant.co_exceptiontable)
        return f"({constant.co_code!r} {numbers}{caught} {names} {done_by(_without_doc(constant))})"
    if isinstance(constant, (tuple, frozenset)):
        parts = map(done_by, constant)
        return f"{type(constant).__name__}({', '.join(sorted(parts) if isinstance(constant, frozenset) else parts)})"
    return f"{type(constant).__name__} {constant!r}"


def _without_doc(code: CodeType) -> tuple[Any, ...]:
    """A function's constants; what says what it does is the first one, which is None where nothing does."""
    constants = code.co_consts
    if sys.version_info >= (3, 14):
        has_doc = bool(code.co_flags & _HAS_DOC)
    else:  # what is no def, such as a comprehension, has a constant of its own there
        has_doc = not code.co_name.startswith("<") and isinstance((*constants, 0)[0], str)
    return (None, *constants[1:]) if has_doc else constants


@functools.lru_cache(maxsize=4096)
def uses_of(code: CodeType) -> dict[str, set[str | None]]:
    """The globals, and the variables of functions around it, that a function names, with the attributes and items
    that it takes of them; None for all of it."""
    found: dict[str, set[str | None]] = {}
    steps = list(dis.get_instructions(code))
    for op, then, last in zip(steps, [*steps[1:], None], [*steps[2:], None, None], strict=True):
        if op.opname not in _NAMES:
            continue
        use: str | None = None
        if then is not None and then.opname in ATTRIBUTES:
            is_get = then.argval == "get" and last is not None and last.opname == "LOAD_CONST"
            use = last.argval if is_get and last is not None else str(then.argval)
        elif then is not None and then.opname == "LOAD_CONST" and last is not None and _takes_item(last):
            use = then.argval
        found.setdefault(str(op.argval), set()).add(use if isinstance(use, str) else None)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            for name, uses in uses_of(constant).items():
                found.setdefault(name, set()).update(uses)
    return found


def _takes_item(op: dis.Instruction) -> bool:
    return op.opname == "BINARY_SUBSCR" or (op.opname == "BINARY_OP" and op.argrepr == "[]")  # from Python 3.14 on


def found_as(function: FunctionType, name: str) -> Any:
    """What a function finds under a name: in a function around it, or in its module."""
    if name in function.__code__.co_freevars and function.__closure__ is not None:
        cell = function.__closure__[function.__code__.co_freevars.index(name)]
        try:
            return cell.cell_contents
        except ValueError:  # it has no value yet
            return None
    return function.__globals__.get(name)
