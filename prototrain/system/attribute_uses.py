"""What a function's code does with attributes of objects, as its bytecode shows it: of whichever object, by name."""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import CodeType

from prototrain.system.function_code import ATTRIBUTES

FILLED = {"add", "append", "appendleft", "clear", "extend", "insert", "pop", "setdefault", "update"}
"""Methods that fill a container."""
ONLY_FILL = FILLED - {"pop", "setdefault"}
"""Those of them that give nothing of it back."""

_IN_PLACE = FILLED | {"discard", "popleft", "remove", "reset", "reset_state", "sort", "update_state"}
_BY_NAME = {"getattr", "hasattr", "setattr"}
_ITEMS = {"STORE_SUBSCR", "DELETE_SUBSCR"}  # behind what holds them and a key


@dataclass
class AttributeUses:
    """Names of attributes.

    Attributes:
        read: those that are looked at, for more than to fill what they hold.
        stored: those that are set.
        anew: those that are set before they are read, whatever happens.
        in_place: those that are changed without being set, as far as that shows.
        set_on: those that are set on what another attribute holds: (name of that, or "" if it does not show; name).
        items: those of which items are set.
    """

    read: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    anew: set[str] = field(default_factory=set)
    in_place: set[str] = field(default_factory=set)
    set_on: set[tuple[str, str]] = field(default_factory=set)
    items: set[str] = field(default_factory=set)

    @property
    def touched(self) -> set[str]:
        return self.read | self.stored | self.in_place | self.items


def changes_variable(method: str) -> bool:
    """Whether a method of this name assigns to a variable."""
    return method.startswith(("assign", "scatter_", "Assign", "ResourceScatter"))


@functools.lru_cache(maxsize=1024)
def attribute_uses(code: CodeType) -> AttributeUses:
    """What one function, and those that are defined in it, do with attributes."""
    found = AttributeUses()
    if _BY_NAME & {*code.co_names}:
        found.read |= {constant for constant in code.co_consts if isinstance(constant, str)}
    steps = list(dis.get_instructions(code))
    is_sure = True
    for before, step, behind, last in zip(
        [None, *steps], steps, [*steps[1:], None], [*steps[2:], None, None], strict=False
    ):
        is_sure = is_sure and "JUMP" not in step.opname and step.opname != "FOR_ITER"
        name = str(step.argval)
        if step.opname == "STORE_ATTR":
            if is_sure and name not in found.touched:
                found.anew.add(name)
            found.stored.add(name)
            if before is not None and before.opname in ATTRIBUTES:
                found.set_on.add((str(before.argval), name))
            elif before is not None and before.opname == "SWAP":  # as in `a.b.c += 1`
                found.set_on.add(("", name))
        elif step.opname in ATTRIBUTES:
            method = str(behind.argval) if behind is not None and behind.opname in ATTRIBUTES else ""
            sets_item = last is not None and last.opname in _ITEMS
            if method not in ONLY_FILL and not sets_item:
                found.read.add(name)
            if method in _IN_PLACE or changes_variable(method):
                found.in_place.add(name)
            if sets_item or (last is not None and last.opname == "COPY"):  # as in `a.b["c"] += 1`
                found.items.add(name)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = attribute_uses(constant)
            found = together([found, inner])
            found.anew -= inner.touched
    return found


def together(uses: Iterable[AttributeUses]) -> AttributeUses:
    """Those of several functions; what is `anew` is so in one of them."""
    found = AttributeUses()
    for one in uses:
        for name, names in vars(one).items():
            getattr(found, name).update(names)
    return found
