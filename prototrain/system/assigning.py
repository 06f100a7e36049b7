"""Whether code may change something besides what is its own, as far as its bytecode shows.

It need not be right about all code: who is taken for one that assigns is compared more closely by a resume, and who is
not is compared by its code.
"""

from __future__ import annotations

import dis
import re
from types import CodeType, FunctionType
from typing import Any, NamedTuple

_SETTERS = {"assign", "assign_add", "assign_sub", "load_state_dict", "load_weights", "scatter_update", "seed"}
_SETTERS |= {"set_random_seed", "set_state", "set_value", "set_weights", "setattr"}
_PUTS = {"append", "appendleft", "clear", "extend", "insert", "pop", "remove", "setdefault", "update"}
# What is trained, or decides how.
_TRAINED = {"config", "keras_model", "model", "model_variables", "optimizer", "state", "trained_variables", "variables"}

_EFFECTS = {"LOAD": 1, "STORE": -1}  # on the height of the stack


class _Op(NamedTuple):
    """One operation; those that Python puts together, such as two loads, are apart."""

    name: str
    of: Any
    effect: int  # as of `_EFFECTS`


def assigns(function: FunctionType) -> bool:
    """Whether a function may change something besides what is its own: it calls what is named like a setter, sets a
    global, or an attribute or an item of something else than its locals and the object that it is a method of."""
    code = function.__code__
    is_method = "." in function.__qualname__ and not function.__qualname__.rpartition(".")[0].endswith(">")
    try:
        return _assigns(code, code.co_varnames[0] if is_method and code.co_argcount else None)
    except ValueError:  # an operation that this Python does not know the effect of
        return True


def _assigns(code: CodeType, own: str | None) -> bool:
    if set(code.co_names) & _SETTERS:
        return True
    ops = _operations(code)
    given = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]) - {own}
    for at, op in enumerate(ops):
        if op.name == "STORE_GLOBAL":
            return True
        changed = _changed_by(ops, at)
        if changed is not None and _is_of_others(changed, own, given, knows_training=bool(_TRAINED & {*code.co_names})):
            return True
    return any(_assigns(constant, None) for constant in code.co_consts if isinstance(constant, CodeType))


def _operations(code: CodeType) -> list[_Op]:
    found = []
    for op in dis.get_instructions(code):
        parts = re.findall("(LOAD|STORE)_FAST", op.opname)
        if len(parts) == 2:  # in one, from Python 3.13 on
            found += [_Op(f"{part}_FAST", of, _EFFECTS[part]) for part, of in zip(parts, op.argval, strict=True)]
        else:
            name = "LOAD_FAST" if op.opname.startswith("LOAD_FAST") else op.opname
            found.append(_Op(name, op.argval, dis.stack_effect(op.opcode, op.arg, jump=False)))
    return found


def _changed_by(ops: list[_Op], at: int) -> list[_Op] | None:
    """The operations that load the object that one sets an attribute or an item of, or puts something into."""
    name = ops[at].name
    if name in ("LOAD_ATTR", "LOAD_METHOD"):
        return _expression(ops, at) if ops[at].of in _PUTS else None
    if name not in ("STORE_ATTR", "DELETE_ATTR", "STORE_SUBSCR", "DELETE_SUBSCR") or ops[at].of == "stop_training":
        return None
    end = at
    if ops[at - 1].name == "SWAP":  # by an operator such as +=, whose target is copied first
        end = max((number for number, op in enumerate(ops[:at]) if op.name == "COPY"), default=0)
        while end and ops[end - 1].name == "COPY":
            end -= 1
    if name.endswith("SUBSCR"):
        end -= len(_expression(ops, end))
    return _expression(ops, end)


def _expression(ops: list[_Op], end: int) -> list[_Op]:
    """The operations, before one, that have put what lies on top of the stack there."""
    height, begin = 0, end
    while begin and height < 1:
        begin -= 1
        height += ops[begin].effect
    return ops[begin:end]


def _is_of_others(loaded: list[_Op], own: str | None, given: set[str], *, knows_training: bool) -> bool:
    if not loaded:
        return True
    root, attribute = loaded[0], loaded[1] if len(loaded) > 1 else None
    if root.name == "LOAD_GLOBAL":
        return False  # of which a script has many, to take notes in
    if root.name != "LOAD_FAST":
        return root.name.startswith("LOAD")
    if root.of == own:
        return attribute is not None and attribute.of in {"trainer", *_TRAINED}
    return root.of in given or knows_training
