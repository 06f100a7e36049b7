"""Private names of TensorFlow and Keras: what the tests of data, models and steps do not show.

When one fails with a new version, its function in `tf_private` is where to mend it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from prototrain import tf_private
from prototrain.checkpoint.values import preserve_global_random
from prototrain.data.pipeline import PLAIN
from prototrain.errors import ConfigError
from prototrain.tf_private import stage_name as name_of
from tests.conftest import ROOT


def numbers() -> tf.data.Dataset:
    return tf.data.Dataset.range(8).shuffle(8, seed=3).map(lambda x: x + 1, num_parallel_calls=2).batch(2)


def the(name: str, dataset: Any) -> Any:
    """Return the topmost stage with this name in a dataset."""
    while name_of(dataset) != name:
        (dataset,) = tf_private.stage_inputs(dataset)
    return dataset


def test_iterator_state_names_the_shuffle_generator(tmp_path: Path) -> None:
    keys = ["@@epoch_num_random_samples", "Iterator::Root and @@epoch_num_random_samples"]  # in examples
    texts = tf.data.Dataset.from_tensor_slices(keys).repeat().batch(2).prefetch(1)
    for dataset, expected in ((numbers(), True), (texts, False)):
        iterator = iter(dataset)
        next(iterator)
        prefix = str(tmp_path / f"{expected}")
        state = tf_private.iterator_state(iterator)
        tf.raw_ops.SaveV2(prefix=prefix, tensor_names=["state"], shape_and_slices=[""], tensors=[state])
        assert tf_private.holds_generator(Path(f"{prefix}.data-00000-of-00001").read_bytes()) == expected


def test_class_names_of_stages() -> None:
    from tensorflow.python.data import experimental, ops

    homes = [ops.__path__, [f"{path}/ops" for path in experimental.__path__]]
    places = [f"tensorflow.python.data.{name}" for name in ("ops", "experimental.ops")]
    found = zip(places, map(pkgutil.iter_modules, homes), strict=True)
    modules = [importlib.import_module(f"{place}.{each.name}") for place, inside in found for each in inside]
    kinds = (kind for module in modules for kind in vars(module).values() if inspect.isclass(kind))
    names = {kind.__name__.removesuffix("V2").removesuffix("Dataset") for kind in kinds}
    assert set(PLAIN) - names == set()


def test_parallel_reads_and_numbers_of_a_stage() -> None:
    batch = numbers()
    several = tf.data.TFRecordDataset("a", num_parallel_reads=2)
    assert name_of(tf_private.wrapped_dataset(several)) == "ParallelInterleave"
    assert tf_private.wrapped_dataset(batch) is None
    for one in (batch, tf.data.Dataset.range(8).padded_batch(2), batch.unbatch().batch(2, num_parallel_calls=2)):
        assert [tf_private.stage_number(one, name) for name in ("batch_size", "drop_remainder")] == [2, 0]
    assert [tf_private.stage_number(one, "count") for one in (batch.repeat(), batch)] == [-1, None]


@pytest.mark.usefixtures("own_seed")
def test_order_and_seeds_of_a_stage() -> None:
    tf_private.set_tensorflow_seed(None)  # the result for an object without one
    plain = tf.data.Dataset.range(4)
    anew, same = plain.shuffle(4), plain.shuffle(4, seed=0, reshuffle_each_iteration=False)
    assert [tf_private.is_seeded(stage) for stage in (anew, same)] == [False, True]
    assert [tf_private.reshuffles_each_pass(stage) for stage in (anew, same)] == [True, False]
    drawn = [the("_Random", tf.data.Dataset.random(seed=seed)) for seed in (None, 3)]
    assert [tf_private.is_seeded(stage) for stage in drawn] == [False, True]
    drawn += [the("_Random", tf.data.Dataset.random(rerandomize_each_iteration=True))]
    assert [tf_private.reshuffles_each_pass(stage) for stage in drawn] == [False, False, True]
    for kind in (False, True, None):
        parallel = {"num_parallel_calls": 2, "deterministic": kind}
        for stage in (plain.map(lambda x: x, **parallel), plain.batch(2, **parallel)):
            assert tf_private.is_declared_unordered(stage) == (kind is False)


@pytest.fixture
def own_seed() -> Iterator[None]:
    before = tf_private.tensorflow_seed()
    yield
    tf_private.set_tensorflow_seed(before)


def test_state_of_a_generator() -> None:
    state = tf.random.Generator.from_seed(1).state
    assert tf_private.is_generator_state(state) and not tf_private.is_generator_state(tf.Variable([1, 2, 3], tf.int64))


def test_keras_thread_state_is_restored() -> None:
    first = keras.layers.Dense(1).name
    with preserve_global_random(), tf_private.preserve_keras_globals():
        keras.utils.set_random_seed(11)
        assert tf_private.keras_seed() == 11
        with preserve_global_random():
            keras.utils.set_random_seed(12)
            keras.utils.clear_session()
            assert keras.layers.Dense(1).name == "dense"
        assert tf_private.keras_seed() == 11
    assert keras.layers.Dense(1).name not in ("dense", first)


def test_averaged_gradients_are_not_summed() -> None:
    plain, own = keras.optimizers.SGD(), keras.optimizers.SGD()
    pairs = [(tf.ones([]), keras.Variable(1.0))]
    for _ in range(2):
        tf_private.expect_averages(plain, 2)
        assert plain._all_reduce_sum_gradients(pairs) is pairs
    own._all_reduce_sum_gradients = mine = lambda pairs: pairs
    tf_private.expect_averages(own, 1)
    assert own._all_reduce_sum_gradients is mine
    with pytest.raises(ConfigError, match="SGD sums the towers' gradients in its own way"):
        tf_private.expect_averages(own, 2)


def test_stateless_attributes_of_keras_callbacks() -> None:
    held = {*vars(keras.callbacks.CSVLogger("a")), *vars(keras.callbacks.EarlyStopping())}
    # Old versions of Keras set csv_file only when training begins.
    held.add("csv_file")
    assert held & tf_private.CALLBACK_SCRATCH == {"_model", "params", "writer", "csv_file", "min_delta"}


OTHERS = {
    "commands/arguments.py": {"_option_string_actions"},  # of argparse, which has no public name
    "experiment/lock.py": {"_asdict", "_replace"},  # of a NamedTuple, where they are public
    "sweeps/study.py": {"_trial_id"},  # of Optuna, which has a public name in the next version only
}
PACKAGE = ROOT / "prototrain"
SOURCES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def defined(tree: ast.AST) -> set[str]:
    """Return all names and attributes that a module assigns."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


OWN = set().union(*map(defined, SOURCES.values()))


def private_names(tree: ast.AST) -> Iterator[str]:
    """Return the private names of other packages that a module uses."""
    here = defined(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            owner = node.value.id if isinstance(node.value, ast.Name) else None
            known = OWN if owner in ("self", "cls") or isinstance(node.value, ast.Call) else here
            is_dunder = node.attr.endswith("__") and node.attr != "__internal__"
            if node.attr not in known and owner not in sys.stdlib_module_names and not is_dunder:
                yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.startswith(("tensorflow.python.", "keras.src.")):
                yield node.value
        elif isinstance(node, ast.ImportFrom | ast.Import):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (name for name in modules if name.startswith(("tensorflow.", "keras.")))


def test_private_names_are_used_only_in_tf_private() -> None:
    others = {str(path.relative_to(PACKAGE)): tree for path, tree in SOURCES.items() if path.name != "tf_private.py"}
    ours = set().union(*map(defined, SOURCES.values()))
    found = {name: names for name, tree in others.items() if (names := set(private_names(tree)) - ours)}
    assert found == OTHERS
