"""What layers are compared by."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from prototrain.experiment.changes import changes_since
from prototrain.model.layer_settings import layer_settings


def layers(rate: float = 0.5) -> list[Any]:
    """Some with names and some without, which Keras gives other ones each time."""
    made = [keras.layers.Dense(2, name="first"), keras.layers.ReLU(), keras.layers.ReLU(), keras.layers.Dropout(rate)]
    return [keras.Sequential([keras.Input((3,)), *made])]


def test_names_that_count_up_by_process_are_no_difference() -> None:
    before = layer_settings(layers())
    assert list(before) == ["input_layer", "first", "re_lu", "re_lu (2)", "dropout"]
    assert layer_settings(layers()) == before
    after = layer_settings(layers(0.9))
    assert [name for name in before if before[name] != after[name]] == ["dropout"]


LAMBDA = "lambda x, scale=2.0: [x * scale * k for k in (3, 4) if k not in {'a', 'b'}]"


def of_lambda(text: str, *, file: str = "a.py", line: int = 1, inner: float = 1.0) -> dict[str, Any]:
    """The settings of a layer with a lambda that is written in some place."""
    names: dict[str, Any] = {}
    exec(compile("\n" * line + f"def make(inner): return {text}", file, "exec"), names)
    made = [keras.layers.Lambda(names["make"](inner), output_shape=(3,), name="lam")]
    return layer_settings([keras.Sequential([*made], name="net")])


@pytest.mark.parametrize(
    ("text", "other", "says"),
    [
        (LAMBDA, {"file": "elsewhere/b.py", "line": 70}, None),
        ("lambda x: (lambda y: y + 1)(x)", {"file": "elsewhere/b.py", "line": 70}, None),
        (LAMBDA, {"text": LAMBDA.replace("4", "5")}, "code"),
        (LAMBDA, {"text": LAMBDA.replace("scale *", "scale +")}, "code"),
        (LAMBDA, {"text": LAMBDA.replace("'b'", "'c'")}, "code"),
        (LAMBDA, {"text": LAMBDA.replace("2.0", "3.0")}, "defaults"),
        ("lambda x: abs(x)", {"text": "lambda x: len(x)"}, "code"),
        ("lambda x: 1", {"text": "lambda x: 1.0"}, "code"),
        ("lambda x: 0.0", {"text": "lambda x: -0.0"}, "code"),
        ("lambda x: x * inner", {"inner": 2.0}, "closure"),
    ],
)
def test_a_lambda_is_told_by_what_it_does_not_by_where_it_lies(text: str, other: dict[str, Any], says: Any) -> None:
    then, now = of_lambda(text), of_lambda(**{"text": text, **other})
    found = changes_since({"layers": then}, {"layers": now})
    assert len(found) == (says is not None) and all(
        line.startswith(f"layers lam function {says} was") for line in found
    )
    assert len(then["lam"]["function"]["code"]) < 20


def test_what_an_earlier_version_said_of_a_lambda_is_not_compared() -> None:
    now = of_lambda(LAMBDA)
    function = {**now["lam"]["function"], "code": "4wEAAAAAAAAAAAAAAAIA... (bab9ff26)"}
    then = {"lam": {**now["lam"], "function": function}}
    assert changes_since({"layers": then}, {"layers": now}) == []
    function["defaults"] = [7.0]
    assert len(changes_since({"layers": then}, {"layers": now})) == 1


class Smallest(keras.constraints.Constraint):
    """Says nothing of what it was made with."""

    def __init__(self, least: float) -> None:
        self.least = least

    def __call__(self, w: Any) -> Any:
        return keras.ops.maximum(w, self.least)


def of_constraint(constraint: Any) -> dict[str, Any]:
    layer = keras.layers.Dense(1, kernel_constraint=constraint, name="dense")
    layer.build((1, 2))
    found: dict[str, Any] = layer_settings([layer])["dense"]
    return found


def test_a_constraint_of_ones_own_counts_with_its_arguments() -> None:
    assert "constraints" not in of_constraint(keras.constraints.NonNeg())
    assert of_constraint(Smallest(0.5)) == of_constraint(Smallest(0.5))
    assert of_constraint(Smallest(0.5)) != of_constraint(Smallest(0.25))
