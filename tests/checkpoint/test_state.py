"""The trainer's state is saved and restored completely or not at all."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain.callbacks import Callback, CallbackFactory, SaveOnExit
from prototrain.checkpoint.state import StateEntries, not_finite
from prototrain.checkpoint.store import Checkpoint, Checkpoints, Snapshot
from prototrain.errors import CheckpointError
from tests.checkpoint.test_values import assert_same
from tests.tiny import At, CountingTrainer


class Counter:
    """An object with a state."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def dense() -> keras.layers.Dense:
    layer = keras.layers.Dense(2, name="dense")
    layer.build((None, 3))
    return layer


def one_of_each() -> dict[str, Any]:
    module = tf.Module(name="module")
    module.v = tf.Variable([1.0], name="v")
    return {
        "variable": tf.Variable([1.0, 2.0]),
        "keras": keras.Variable(np.ones(2, np.float32)),
        "array": np.arange(3),
        "layer": dense(),
        "module": module,
        "checkpoint": tf.train.Checkpoint(v=tf.Variable([3.0])),
        "generator": tf.random.Generator.from_seed(1),
        "iterator": iter(tf.data.Dataset.range(10)),
        "counter": Counter(3),
        "value": {"list": [1, 2.5, None, "x"]},
    }


def save(state: dict[str, Any], directory: Path) -> Checkpoint:
    entries = StateEntries(state)
    snapshot = Snapshot(1, entries.variables, entries.saveables, {"values": entries.values()})
    checkpoints = Checkpoints(directory)
    checkpoints.start(snapshot)()
    found = checkpoints.newest()
    assert found is not None
    return found


def restore(state: dict[str, Any], checkpoint: Checkpoint) -> None:
    with StateEntries(state).restoring(checkpoint):
        pass


def bits(state: dict[str, Any]) -> dict[str, bytes]:
    return {name: np.asarray(variable).tobytes() for name, variable in StateEntries(state).variables.items()}


def test_every_kind_is_restored(tmp_path: Path) -> None:
    state = one_of_each()
    next(state["iterator"])
    state["generator"].normal([3])
    saved = save(state, tmp_path)
    before, expected = bits(state), (state["generator"].normal([2]).numpy(), next(state["iterator"]).numpy())
    other = one_of_each()
    for variable in StateEntries(other).variables.values():
        if not isinstance(variable, np.ndarray):
            variable.assign(tf.zeros_like(variable))
    other["array"], other["value"] = np.zeros(3, np.int64), None
    other["counter"].count = 0
    other["checkpoint"].v.assign([0.0])
    restore(other, saved)
    assert bits(other) == before
    assert other["counter"].count == 3 and other["checkpoint"].v.numpy() == 3.0 and other["value"] == state["value"]
    np.testing.assert_array_equal(other["array"], np.arange(3))
    np.testing.assert_array_equal(other["generator"].normal([2]).numpy(), expected[0])
    assert next(other["iterator"]).numpy() == expected[1] == 1


def test_variables_are_named_after_their_entries() -> None:
    names = list(StateEntries(one_of_each()).variables)
    of_holders = ["layer/dense/kernel", "layer/dense/bias", "module/v"]
    assert names == ["variable", "keras", "array", *of_holders, "generator"]


class Refuses(Counter):
    """An object whose state cannot be restored."""

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise KeyError("best")


class Part:
    def write(self, prefix: str) -> None:
        Path(f"{prefix}.txt").touch()

    def read(self, prefix: str, meta: None) -> None:
        raise CheckpointError("the data has changed")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda state: state.update(variable=tf.Variable([1.0])),
            r"variable is float32\[2\] .* float32\[1\] in",
        ),
        (
            lambda state: state.update(variable=tf.Variable([1, 2])),
            r"variable is float32\[2\] .* int32\[2\] in",
        ),
        (lambda state: state.update(more=tf.Variable(0.0)), "more is new in the model"),
        (lambda state: state.pop("variable"), "variable is no longer in the model"),
        (lambda state: state.update(new="value"), "has no state for 'new'"),
        (lambda state: state.update(new=iter(tf.data.Dataset.range(3))), "has no state for 'new'"),
        (lambda state: state.update(counter=Refuses()), r"state\['counter'\] cannot be restored: KeyError: 'best'"),
        (lambda state: state.update(iterator=Part()), "the data has changed"),
        (lambda state: state.update(checkpoint=iter(tf.data.Dataset.range(3))), "cannot be restored"),
    ],
)
def test_mismatch_changes_no_variable(tmp_path: Path, change: Callable[[dict[str, Any]], Any], said: str) -> None:
    saved = save(one_of_each(), tmp_path)
    state = one_of_each()
    change(state)
    for variable in StateEntries(state).variables.values():
        if not isinstance(variable, np.ndarray):
            variable.assign(tf.ones_like(variable))
    state["value"] = "as it was"
    before = bits(state)
    with pytest.raises(CheckpointError, match=said):
        restore(state, saved)
    assert bits(state) == before and state["value"] == "as it was"


def test_variables_of_callbacks_are_optional(tmp_path: Path) -> None:
    saved = save({"v": tf.Variable(1.0), "callbacks/old": tf.Variable(5.0)}, tmp_path)
    state = {"v": tf.Variable(0.0), "callbacks/new": tf.Variable(7.0)}
    restore(state, saved)
    assert [float(variable) for variable in state.values()] == [1.0, 7.0]


def test_iterator_with_datasets_is_refused(tmp_path: Path) -> None:
    nested = tf.data.Dataset.range(20).window(2).shuffle(5, seed=1).flat_map(lambda window: window)
    iterator = iter(nested)
    next(iterator)
    with pytest.raises(CheckpointError, match="an iterator that holds datasets"):
        save({"iterator": iterator}, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (np.zeros([0]), np.arange(6.0)),
        (np.zeros(2, np.float32), np.ones([2, 2])),
        (np.float64(1), np.array(2.0)),
        (None, np.array([1, 2])),
        (np.array([1, 2]), None),
        (np.zeros(2), np.array(["ab", "c"])),
        (np.zeros(2, ">f8"), np.ones(2, ">f8")),
        (np.zeros(2), np.array(["2020-01-01"], "datetime64[D]")),
        ({}, {1: "a", (2, 3): [np.int8(1)]}),
        ([], (1, 2)),
    ],
)
def test_values_and_arrays_may_change_shape(first: Any, later: Any, tmp_path: Path) -> None:
    checkpoint = save({"x": later, "v": tf.Variable(1.0)}, tmp_path)
    state = {"x": first, "v": tf.Variable(0.0)}
    restore(state, checkpoint)
    assert_same(state["x"], later)
    assert float(state["v"]) == 1.0


def test_late_entries_are_restored(tmp_path: Path) -> None:
    late = {"n": 3, "array": np.arange(2), "callbacks/mine": 4, "counter": Counter(3)}
    state: dict[str, Any] = {}
    restore(state, save(late, tmp_path))
    assert list(state) == ["n", "array"] and state["n"] == 3
    assert_same(state["array"], np.arange(2))


def test_mutable_entries_keep_their_identity(tmp_path: Path) -> None:
    checkpoint = save({"list": [1], "dict": {"a": 1}, "array": np.ones(2), "other": [2]}, tmp_path)
    memory: list[int] = []
    state: dict[str, Any] = {"list": memory, "dict": {"b": 2}, "array": np.zeros(2), "other": memory}
    before = dict(state)
    restore(state, checkpoint)
    assert all(state[key] is before[key] for key in ("list", "dict", "array"))
    assert memory == [1] and state["dict"] == {"a": 1} and state["array"].tolist() == [1.0, 1.0]
    assert state["other"] == [2]  # two entries that were the same list at the start, and are no longer


def test_nested_entries_are_restored(tmp_path: Path) -> None:
    def state(*numbers: float) -> dict[str, Any]:
        a, b, c, d = (np.full(2, number) for number in numbers)
        return {"net": {"w": a, "rest": [b, {"x": 1}]}, "pair": [c, d]}

    saved = save(state(1, 2, 3, 4), tmp_path)
    made = state(0, 0, 0, 0)
    made["pair"][1] = made["pair"][0]
    net = made["net"]
    restore(made, saved)
    assert_same(made, state(1, 2, 3, 4))
    assert made["net"] is net


def test_invalid_entry_is_named_and_nothing_is_saved(experiment: Path) -> None:
    trainer = CountingTrainer(experiment=experiment)
    trainer.state["x"] = {}
    with pytest.raises(CheckpointError, match=r"state\['x'\]\['inner'\] cannot be saved: a value of type set"):
        trainer.train([At(2, lambda: trainer.state["x"].update(inner={1})), SaveOnExit()], max_steps=3)
    assert not trainer.run.checkpoints.steps()


class Recorder(Callback):
    """Keeps a value and the restored state."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.given: Any = None

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state["value"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), np.float32(0.5)),
        ((1, [2]), (1, [2])),
        ({1: np.arange(2)}, {1: np.arange(2)}),
        (tf.constant([1]), np.array([1], np.int32)),
        (defaultdict(int, a=1), {"a": 1}),
    ],
)
def test_outputs_and_callback_states_are_restored(value: Any, expected: Any, experiment: Path) -> None:
    class Returns(CountingTrainer):
        def run_step(self) -> dict[str, Any]:
            return {**super().run_step(), "x": np.float32(0.1)}

    first = Returns(experiment=experiment)
    first.train([Recorder(value), SaveOnExit()], max_steps=2)
    trainer, callback = Returns(experiment=experiment), Recorder(value)
    trainer.train([callback, SaveOnExit()], max_steps=2)
    assert_same(callback.given, expected)
    assert_same(trainer.outputs, first.outputs)


BITS = [np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64]


def draws(generator: Any) -> list[float]:
    normal = generator.gauss if isinstance(generator, random.Random) else generator.normal
    return [normal(0.0, 1.0) for _ in range(5)]


def spawning() -> np.random.Generator:
    generator = np.random.default_rng(1)
    generator.spawn(1)
    return generator


@pytest.mark.parametrize(
    "make",
    [*(lambda seed, bits=bits: np.random.Generator(bits(seed)) for bits in BITS), np.random.RandomState, random.Random],
    ids=[*(bits.__name__ for bits in BITS), "RandomState", "Random"],
)
def test_random_generators_continue(make: Callable[[int], Any], tmp_path: Path) -> None:
    state = {"rng": make(1)}
    draws(state["rng"])  # an odd number of them: some generators keep half of a pair
    checkpoint = save(state, tmp_path)
    expected = draws(state["rng"])
    other = {"rng": make(2)}
    restore(other, checkpoint)
    assert draws(other["rng"]) == expected


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: {1, 2}, "set cannot be restored unchanged"),
        (spawning, "a random generator that has spawned others cannot be saved"),
        (lambda: {"inner": np.random.default_rng(1)}, "Generator cannot be restored"),
        (lambda: tf.zeros([2]), r"state\['x'\] cannot be saved: a value of type EagerTensor cannot be"),
        (lambda: [tf.Variable(1.0)], r"state\['x'\]\[0\] cannot be saved: .* cannot be restored"),
        (lambda: keras.layers.Dense(2), r"state\['x'\] has no variables yet"),
        (lambda: keras.optimizers.Adam(), "has no variables yet"),
    ],
)
def test_unsavable_entry_is_an_error_before_the_first_step(make: Any, said: str, experiment: Path) -> None:
    trainer = CountingTrainer(experiment=experiment)
    trainer.state["x"] = make()
    with pytest.raises(CheckpointError, match=said):
        trainer.train([SaveOnExit()], max_steps=3)
    assert trainer.global_step == 0


def test_changes_in_a_block_are_undone() -> None:
    state: dict[str, Any] = {"v": tf.Variable(1.0), "array": np.zeros(2), "number": 3}
    with pytest.raises(RuntimeError, match="amid it"), StateEntries(state).preserve():
        state["v"].assign(2.0)
        state["array"] += 1
        state["number"] = 4
        raise RuntimeError("amid it")
    assert float(state["v"]) == 1.0 and state["array"].tolist() == [0, 0] and state["number"] == 3


def test_global_random_generators_of_a_callback_continue(tmp_path: Path) -> None:
    def draws(experiment: Path, *parts: int) -> list[list[float]]:
        found: list[list[float]] = []
        for steps in parts:
            draw = CallbackFactory(
                trigger=lambda _: found.append([random.random(), np.random.random(), float(keras.random.uniform(()))])
            )
            CountingTrainer(experiment=experiment).train([draw.every(steps=2), SaveOnExit()], max_steps=steps)
            begin(steps)  # as in another process
        return found

    def begin(seed: int) -> None:
        keras.utils.clear_session()  # older versions of Keras keep their generator
        keras.utils.set_random_seed(seed)

    begin(3)
    expected = draws(tmp_path / "one", 8)
    begin(3)
    assert draws(tmp_path / "two", 4, 8) == expected


@pytest.mark.parametrize(
    ("value", "is_finite"),
    [
        (tf.Variable([1.0, math.nan]), False),
        (tf.Variable([math.inf, math.nan], dtype=tf.float16), False),
        (tf.constant([-math.inf], tf.bfloat16), False),
        (np.array([1.0, -math.inf]), False),
        (np.array([complex(0.0, math.inf)]), False),
        (keras.Variable(np.array([math.nan])), False),
        (tf.Variable(3e38), True),
        (tf.Variable(np.zeros([0, 3])), True),
        (tf.Variable([2**31 - 1]), True),
        (tf.Variable([True]), True),
        (tf.Variable(["nan"]), True),
    ],
)
def test_each_dtype(value: Any, is_finite: bool) -> None:
    assert not_finite({"x": value}) == ([] if is_finite else ["x"])
