"""What code and objects of the user's are, by their contents."""

from __future__ import annotations

import copy
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import date, datetime
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain.system.contents import is_own_code
from prototrain.system.objects import is_own
from prototrain.system.own_code import (
    attributes,
    code_of,
    digest_of,
    names_in,
    noted,
    reached,
)

Module = Callable[[str], Any]


@pytest.fixture
def module(tmp_path: Path) -> Iterator[Module]:
    """Make modules of the user's own from their text; each comes in place of the one before."""

    def made(text: str) -> ModuleType:
        found = ModuleType("edited")
        found.__file__ = str(tmp_path / "edited.py")
        sys.modules["edited"] = found
        exec(compile(text, "edited.py", "exec"), vars(found))
        return found

    yield made
    sys.modules.pop("edited", None)


CLASS = "import math\nclass thing:\n    RATE = {rate}\n    def __init__(self, a=1):\n        self.a = a{more}\n"
SAME = {
    "moved": ("def thing(x):\n    return x * 2", "import os\n\n\n\ndef other(): pass\ndef thing(x):\n    return x * 2"),
    "comment": ("def thing(x):\n    return x * 2", "def thing(x):\n    # twice\n\n    return x * 2"),
    "another global": ("STEPS = 1\ndef thing(x): return x", "STEPS = 2\ndef thing(x): return x"),
    "attribute of that name": ("steps = 1\ndef thing(x): return x.steps", "steps = 2\ndef thing(x): return x.steps"),
    "set of constants": ("def thing(x): return x in {'a', 'b', 'c'}", "def thing(x): return x in {'c', 'b', 'a'}"),
    "class": (CLASS.format(rate=1, more=""), "\n\n" + CLASS.format(rate=1, more="")),
    "recursion": ("def thing(x): return thing(x - 1)", "\ndef thing(x): return thing(x - 1)"),
    "docstring": ("def thing(x):\n    'One.'\n    return x", "def thing(x):\n    'Other.'\n    return x"),
    "another setting": (
        "from types import SimpleNamespace as N\na = N(lr=1, steps=2)\ndef thing(): return a.lr",
        "from types import SimpleNamespace as N\na = N(lr=1, steps=3)\ndef thing(): return a.lr",
    ),
    "another item": (
        "def make(o): return lambda: o['lr']\nthing = make({'lr': 1, 'steps': 2})",
        "def make(o): return lambda: o['lr']\nthing = make({'lr': 1, 'steps': 3})",
    ),
    "another class attribute": (
        "class C:\n    lr = 1\n    steps = 2\ndef thing(): return C.lr",
        "class C:\n    lr = 1\n    steps = 3\ndef thing(): return C.lr",
    ),
    "another field of a tuple": (
        "from collections import namedtuple as N\na = N('A', 'lr steps')(1, 2)\ndef thing(): return a.lr",
        "from collections import namedtuple as N\na = N('A', 'lr steps')(1, 3)\ndef thing(): return a.lr",
    ),
    "another item that is got": (
        "o = {'lr': 1, 's': 2}\ndef thing(): return o.get('lr')",
        "o = {'lr': 1, 's': 3}\ndef thing(): return o.get('lr')",
    ),
    "what a run fills": (
        "log = []\ndef thing(): log.append(1)",
        "log = [1, 2]\ndef thing(): log.append(1)",
    ),
    "path": ("def thing(x, at='/tmp/a/b'): return x", "def thing(x, at='/tmp/c/d'): return x"),
}
OTHER = {
    "constant": ("def thing(x): return x * 2", "def thing(x): return x * 3"),
    "type of a constant": ("def thing(x): return x * 2", "def thing(x): return x * 2.0"),
    "default": ("def thing(x, y=1): return x", "def thing(x, y=2): return x"),
    "keyword default": ("def thing(x, *, y=1): return x", "def thing(x, *, y=2): return x"),
    "closure": ("def make(n): return lambda x: n\nthing = make(1)", "def make(n): return lambda x: n\nthing = make(2)"),
    "global": ("RATE = 1\ndef thing(x): return RATE", "RATE = 2\ndef thing(x): return RATE"),
    "global in a nested function": (
        "RATE = 1\ndef thing(x): return lambda: RATE",
        "RATE = 2\ndef thing(x): return lambda: RATE",
    ),
    "helper of a helper": (
        "def a(x): return 1\ndef b(x): return a(x)\ndef thing(x): return b(x)",
        "def a(x): return 2\ndef b(x): return a(x)\ndef thing(x): return b(x)",
    ),
    "partial": (
        "import functools\nthing = functools.partial(lambda x, y: x, y=1)",
        "import functools\nthing = functools.partial(lambda x, y: x, y=2)",
    ),
    "method": (CLASS.format(rate=1, more=""), CLASS.format(rate=1, more=" + 1")),
    "class attribute": (CLASS.format(rate=1, more=""), CLASS.format(rate=2, more="")),
    "base": (
        "class Base:\n    def f(self): return 1\nclass thing(Base): pass",
        "class Base:\n    def f(self): return 2\nclass thing(Base): pass",
    ),
    "property": (
        "class thing:\n    @property\n    def a(self): return 1",
        "class thing:\n    @property\n    def a(self): return 2",
    ),
    "static method": (
        "class thing:\n    @staticmethod\n    def a(): return 1",
        "class thing:\n    @staticmethod\n    def a(): return 2",
    ),
    "setting": (
        "from types import SimpleNamespace as N\na = N(lr=1, steps=2)\ndef thing(): return a.lr",
        "from types import SimpleNamespace as N\na = N(lr=2, steps=2)\ndef thing(): return a.lr",
    ),
    "item": (
        "def make(o): return lambda: o['lr']\nthing = make({'lr': 1, 'steps': 2})",
        "def make(o): return lambda: o['lr']\nthing = make({'lr': 2, 'steps': 2})",
    ),
    "comprehension": (
        "def thing(x): return [v for v in x if 'a' in v]",
        "def thing(x): return [v for v in x if 'b' in v]",
    ),
    "generator": (
        "def thing(x): return list('a' for v in x)",
        "def thing(x): return list('b' for v in x)",
    ),
    "where an error is caught": (
        "def thing(x):\n try:\n  a = x()\n  b = x()\n except ValueError:\n  return 1\n return 2",
        "def thing(x):\n try:\n  a = x()\n except ValueError:\n  return 1\n b = x()\n return 2",
    ),
    "field of a class": (
        "class C:\n    lr = 1\n    steps = 2\ndef thing(): return C.lr",
        "class C:\n    lr = 2\n    steps = 2\ndef thing(): return C.lr",
    ),
    "inherited field": (
        "class C:\n    lr = 1\nc = C()\ndef thing(): return c.lr",
        "class C:\n    lr = 2\nc = C()\ndef thing(): return c.lr",
    ),
    "bound object": (
        "class A:\n    def __init__(self, n): self.n = n\n    def f(self): return self.n\nthing = A(1).f",
        "class A:\n    def __init__(self, n): self.n = n\n    def f(self): return self.n\nthing = A(2).f",
    ),
    "cached": (
        "import functools\n@functools.lru_cache\ndef thing(): return 1",
        "import functools\n@functools.lru_cache\ndef thing(): return 2",
    ),
    "slots": (
        "class A:\n    __slots__ = ('n',)\n    def __init__(self, n): self.n = n\na = A(1)\ndef thing(): return a",
        "class A:\n    __slots__ = ('n',)\n    def __init__(self, n): self.n = n\na = A(2)\ndef thing(): return a",
    ),
    "global object": (
        "class A:\n    def __init__(self, n): self.n = n\na = A(1)\ndef thing(): return a.n",
        "class A:\n    def __init__(self, n): self.n = n\na = A(2)\ndef thing(): return a.n",
    ),
    "object's class": (
        "class A:\n    def f(self): return 1\na = A()\ndef thing(): return a.f()",
        "class A:\n    def f(self): return 2\na = A()\ndef thing(): return a.f()",
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_code_elsewhere_is_the_same(module: Module, name: str) -> None:
    first, second = (digest_of(module(text).thing) for text in SAME[name])
    assert first == second


@pytest.mark.parametrize("name", OTHER)
def test_other_code_is_another(module: Module, name: str) -> None:
    first, second = (digest_of(module(text).thing) for text in OTHER[name])
    assert first != second


def test_whose_something_is(module: Module) -> None:
    assert is_own(module("def thing(): pass").thing)
    assert is_own(test_whose_something_is)
    assert not is_own(np.ndarray)
    assert not is_own(len)
    assert not is_own(keras.layers.Dense)
    assert not is_own(attributes)
    own = module("class thing: pass").thing()
    assert is_own_code([own]) and is_own_code({"a": own}) and not is_own_code([1, len, np.array(1)])


class Holder:
    """Has what it is given as an attribute."""

    def __init__(self, value: Any) -> None:
        self._value = value


def decay(rate: float) -> Any:
    return keras.optimizers.schedules.ExponentialDecay(rate, 10, 0.9)


KEPT: list[tuple[Any, Any]] = [
    (0.5, 0.5),
    ([[1, 0.1]], [[1, 0.1]]),
    (float("nan"), "nan"),
    ("/tmp/some/place", "a place or a time"),
    ("/kernel", "/kernel"),
    (Path("/some/place"), "a place or a time"),
    (Path("place"), "PosixPath place"),
    (date(2019, 1, 1), "date 2019-01-01"),
    (datetime(2019, 1, 1, 12), "datetime 2019-01-01 12:00:00"),
    (date.today(), "a place or a time"),
    (1.2e9 + 0.5, 1.2e9 + 0.5),
    (UUID("c0ffee00-1234-4234-8234-123456789abc"), "a place or a time"),
    ("c0ffee00123442348234123456789abc", "a place or a time"),
    ("d41d8cd98f00b204e9800998ecf8427e", "d41d8cd98f00b204e9800998ecf8427e"),
    (np.tanh, "tanh"),
]


@pytest.mark.parametrize(("value", "kept"), KEPT, ids=[str(value) for value, _ in KEPT])
def test_a_short_attribute_is_kept_as_it_is(value: Any, kept: Any) -> None:
    assert attributes(Holder(value))["value"] == kept


def test_when_something_was_made_does_not_count() -> None:
    assert attributes(Holder(time.time() + 0.123))["value"] == "a place or a time"
    assert attributes(Holder(1234.5))["value"] == 1234.5


class Pendulum(tf.Module):
    """Is of a class that has one of TensorFlow's as its base."""

    def __init__(self, gravity: float) -> None:
        super().__init__()
        self.gravity = gravity


SAME_VALUES = [
    lambda: np.arange(3.0),
    lambda: tf.constant([1.0, 2.0]),
    lambda: {"b", "a", "c"},
    lambda: threading.Lock(),
    lambda: np.random.default_rng(),
    lambda: [np.float32(1.5), b"text", 1j, None],
    lambda: {"key": (1, 2), 3: Holder(4)},
    lambda: decay(0.1),
    lambda: tf.function(lambda x: x + 1),
    lambda: keras.layers.Dense(3),
]


@pytest.mark.parametrize("make", SAME_VALUES)
def test_equal_attributes_are_the_same(make: Callable[[], Any]) -> None:
    assert attributes(Holder(make())) == attributes(Holder(make()))


OTHER_VALUES: list[tuple[Any, Any]] = [
    (np.arange(3.0), np.arange(4.0)),
    (tf.constant([1.0]), tf.constant([2.0])),
    ({"a"}, {"b"}),
    ({"key": Holder(1)}, {"key": Holder(2)}),
    (tf.function(lambda x: x + 1), tf.function(lambda x: x + 2)),
    (decay(0.1), decay(0.2)),
    (1, True),
    (np.float32(1), np.float64(1)),
    (Fraction(1, 2), Fraction(1, 3)),
    (np.poly1d([1.0, 0.5]), np.poly1d([2.0, 0.5])),
    (np.tanh, np.sin),
    (Pendulum(1.5), Pendulum(2.5)),
    (tf.Variable(1.0), tf.Variable(2.0)),
    (keras.Variable(1.0), keras.Variable(2.0)),
    (keras.losses.Huber(1.0), keras.losses.Huber(2.0)),
    (keras.losses.CosineSimilarity(axis=0), keras.losses.CosineSimilarity()),
    (np.zeros(9_000_000), np.append(np.zeros(8_999_999), 1.0)),
    (Path("a.txt"), Path("b.txt")),
    (date(2019, 1, 1), date(2021, 1, 1)),
]


@pytest.mark.parametrize(("one", "other"), OTHER_VALUES)
def test_other_attributes_are_others(one: Any, other: Any) -> None:
    first, second = (str(attributes(Holder(value))) for value in (one, other))
    assert first != second


def test_what_holds_itself_comes_to_an_end() -> None:
    cycle: list[Any] = [1]
    cycle.append(cycle)
    holder = Holder(cycle)
    cycle.append(holder)
    assert attributes(holder) == attributes(holder)
    assert digest_of(holder) != digest_of(Holder([1]))


@pytest.mark.parametrize("name", OTHER)
def test_code_alone_is_told_without_values(module: Module, name: str) -> None:
    values = ["default", "keyword default", "closure", "class attribute", "global object", "object's class", "partial"]
    values += ["setting", "item", "bound object", "slots", "field of a class", "inherited field"]
    values += ["global", "global in a nested function"]

    def of(text: str) -> str:
        kind = module(text).thing
        return code_of(kind if isinstance(kind, type) else type("Own", (), {"__module__": "edited", "does": kind}))

    first, second = map(of, OTHER[name])
    assert (first == second) is (name in values)


DECORATED = """
import functools
def timed(function):
    @functools.wraps(function)
    def wrapper(self, *given):
        return function(self, *given)
    return wrapper
class thing:
    @timed
    def f(self): return {value}
"""


def test_the_code_of_a_decorated_method_counts(module: Module) -> None:
    one, same, other = (code_of(module(DECORATED.format(value=value)).thing) for value in (1, 1, 2))
    assert one == same != other


def test_modules_that_are_imported_in_functions_count(
    module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "def f():\n    from late_package.part import x\n    return x\nclass thing:\n"
    text += "    def g(self):\n        import late_module, json, numpy, nowhere_at_all\n        return f()\n"
    (tmp_path / "late_package").mkdir()
    files = [tmp_path / name for name in ("late_module.py", "late_package/__init__.py", "late_package/part.py")]
    for file in files:
        file.write_text("x = 1\n")
    before = reached(module(text).thing)
    assert before.keys() == {"the module late_module", "the module late_package.part"}
    for file in (files[0], files[2]):
        file.write_text("x = 2\n")
    after = reached(module(text).thing)
    assert all(before[name] != after[name] for name in before)


def test_clocks_that_were_read_in_this_process_do_not_count(module: Module) -> None:
    text = "import time\nNOW = time.perf_counter()\nTHEN = 0.25\ndef thing(): return NOW - THEN\n"
    assert reached(module(text).thing) == {"NOW": "a place or a time", "THEN": 0.25}


REACHED = {
    "global": ("RATE = 2\ndef thing(x): return RATE * x", {"RATE": 2}),
    "setting": (
        "from types import SimpleNamespace as N\na = N(lr=1, steps=2)\ndef thing(): return a.lr",
        {"a.lr": 1},
    ),
    "default": ("def thing(x, y=1, *, z='a'): return x", {"thing(y)": 1, "thing(z)": "a"}),
    "helper": ("RATE = 2\ndef f(y=3): return RATE\ndef thing(x): return f(x)", {"RATE": 2, "f(y)": 3}),
    "class": (
        "import math\nclass Base:\n    A = 1\nclass thing(Base):\n    B = 2\n    def f(self): return math.pi",
        {"Base.A": 1, "thing.B": 2},
    ),
    "closure": ("def make(n): return lambda: n\nthing = make(4)", {"n": 4}),
    "what a run fills": ("log = []\ndef thing(): log.append(1)", {}),
    "module of settings": (
        "import sys\nme, RATE, OTHER = sys.modules['edited'], 3, 4\ndef thing(): return me.RATE",
        {"me.RATE": 3},
    ),
    "flags": (
        "from email.message import Message as M\na = M()\na.rate = 1.5\ndef thing(): return a.rate",
        {"a.rate": 1.5},
    ),
    "variable of the environment": (
        "from os import environ\ndef thing(): return environ['LANGUAGE_OF_TEST']",
        {"environ.LANGUAGE_OF_TEST": "en"},
    ),
    "no value": ("import os\ndef thing(x): return os.path.join(str(x), y)", {}),
}


@pytest.mark.parametrize("name", REACHED)
def test_the_values_that_code_reaches_have_names(module: Module, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGUAGE_OF_TEST", "en")
    text, expected = REACHED[name]
    assert reached(module(text).thing) == expected


def test_what_cannot_be_asked_is_known_by_its_class(module: Module) -> None:
    text = "class A:\n    def __getattr__(self, name): raise RuntimeError(name)\na = A()\ndef thing(): return a.rate"
    assert set(reached(module(text).thing)) == {"a"}


def test_names_are_those_of_all_code_that_is_reached(module: Module) -> None:
    text = "def f(t): return [t.total_steps for _ in 'a']\nclass thing:\n    def g(self, t): return f(t)"
    assert {"total_steps", "f"} <= names_in(module(text).thing)
    assert "total_steps" in names_in([module(text).f])
    assert "total_steps" not in names_in([3, "total_steps"])


class Refuses:
    """Raises at whatever it is asked."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def linked(length: int) -> Any:
    found: Any = None
    for _ in range(length):
        found = Holder(found)
    return found


def nested(depth: int) -> Any:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def gone() -> Any:
    return weakref.proxy(Holder(1))


def in_sets(length: int) -> Any:
    found = [Holder(set()) for _ in range(length)]
    for one in found:
        one._value.update(found)
    return found[0]


STRANGE: list[Callable[[], Any]] = [
    lambda: tf.data.Dataset.range(3).map(lambda x: x + 1),
    lambda: iter(tf.data.Dataset.range(3)),
    lambda: tf.Variable([1.0]),
    lambda: keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]),
    lambda: keras.optimizers.Adam(),
    lambda: tf.constant([1.0, 2.0]),
    lambda: np.ones(3, tf.bfloat16.as_numpy_dtype),
    Refuses,
    gone,
    lambda: linked(1000),
    lambda: nested(2000),
    lambda: in_sets(8),
    lambda: Mock(spec=dict),
    lambda: 10**5000,
    lambda: type("Nameless", (), {"__module__": None})(),
    lambda: list(range(100_000)),
]


@pytest.mark.parametrize("make", STRANGE)
def test_nothing_costs_a_run(make: Callable[[], Any]) -> None:
    value = make()
    assert attributes(Holder(value)) == attributes(Holder(value))
    digest_of(lambda: value)


def test_a_model_that_is_trained_is_no_other() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    before = attributes(Holder(model))
    model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0)
    assert attributes(Holder(model)) == before


def test_sets_have_no_order(module: Module) -> None:
    text = "def a(): return 1\ndef b(): return a()\nclass C:\n    def f(self): return b()\n"
    first, second = module(text), module(text)
    assert digest_of({first.a, first.b, first.C}) == digest_of({second.C, second.b, second.a})


def test_what_is_noted_is_what_was_first() -> None:
    one = Holder(1)
    assert noted(one, lambda: one._value) == 1
    one._value = 2
    assert noted(one, lambda: one._value) == 1
    other = copy.copy(one)
    assert noted(other, lambda: other._value) == 2
    assert vars(one) == {"_value": 2}
