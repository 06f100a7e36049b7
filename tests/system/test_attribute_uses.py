from __future__ import annotations

from typing import Any

import pytest

from prototrain.system.attribute_uses import attribute_uses

# A piece of code of a method, and what is found: attributes by kind.
CODES: dict[str, dict[str, set[Any]]] = {
    "return self.a": {"read": {"a"}},
    "self.a = 1": {"stored": {"a"}, "anew": {"a"}},
    "self.a += 1": {"read": {"a"}, "stored": {"a"}, "set_on": {("", "a")}},
    "self.a = self.b": {"read": {"b"}, "stored": {"a"}, "anew": {"a"}},
    "self.a = self.a + 1": {"read": {"a"}, "stored": {"a"}},
    "self.a = 1; return self.a": {"read": {"a"}, "stored": {"a"}, "anew": {"a"}},
    "if other: self.a = 1": {"stored": {"a"}},
    "for one in other: self.a = one": {"stored": {"a"}},
    "self.a.append(1)": {"in_place": {"a"}, "read": {"append"}},
    "self.a.append(self.b)": {"in_place": {"a"}, "read": {"append", "b"}},
    "return self.a.pop()": {"in_place": {"a"}, "read": {"a", "pop"}},
    "self.a.popleft()": {"in_place": {"a"}, "read": {"a", "popleft"}},
    "self.a.assign_add(1)": {"in_place": {"a"}, "read": {"a", "assign_add"}},
    "self.a['x'] = 1": {"items": {"a"}},
    "self.a[other] = 1": {"items": {"a"}},
    "del self.a[other]": {"items": {"a"}},
    "self.a['x'] += 1": {"items": {"a"}, "read": {"a"}},
    "self.b.a = 1": {"set_on": {("b", "a")}, "stored": {"a"}, "anew": {"a"}, "read": {"b"}},
    "self.b.c.a = 1": {"set_on": {("c", "a")}, "stored": {"a"}, "anew": {"a"}, "read": {"b", "c"}},
    "self.b.a += 1": {"set_on": {("", "a")}, "stored": {"a"}, "read": {"a", "b"}},
    "other.a = 1": {"stored": {"a"}, "anew": {"a"}},
    "self.a = getattr(self, 'a', 0)": {"read": {"a"}, "stored": {"a"}},
    "self.a = 1\n    f = lambda: self.a": {"read": {"a"}, "stored": {"a"}},
}
KINDS = ("read", "stored", "anew", "in_place", "set_on", "items")


@pytest.mark.parametrize("code", CODES)
def test_what_code_does_with_attributes(code: str) -> None:
    names: dict[str, Any] = {}
    exec(f"def method(self, other):\n    {code}", names)
    found = attribute_uses(names["method"].__code__)
    shown = {kind: set(getattr(found, kind)) for kind in KINDS}
    assert {kind: names for kind, names in shown.items() if names} == CODES[code]
