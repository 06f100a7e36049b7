"""Fixtures and settings of all tests."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from prototrain.towers import make_cpu_devices

# Devices that trainers of several towers can use; TensorFlow makes them at its start or never.
make_cpu_devices(4)

# Under nohup and in the background of a shell these signals are ignored. Runs and child processes would inherit this,
# and tests that send a signal would wait forever.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tracing creates many objects and hardly any garbage.
gc.set_threshold(200_000, 50, 50)

ROOT = Path(__file__).parent.parent

COMPATIBILITY = (
    # Training, exact resumes, and the private names that they use.
    "tests/test_tf_private.py",
    "tests/test_launch.py",
    "tests/test_optimizers.py",
    "tests/data/test_positions.py",
    "tests/data/test_rule.py",
    "tests/model/test_layer_cache.py",
    "tests/step/test_calls.py::test_callbacks_do_not_change_results",
    "tests/step/test_calls.py::test_resumed_run_is_exact",
    "tests/step/test_calls.py::test_non_finite_step_changes_nothing",
    "tests/step/test_calls.py::test_optimizers_of_a_subclass_are_saved",
    # Checkpoints.
    "tests/checkpoint/",
    # Callbacks.
    "tests/callbacks/evaluation/test_validation.py::test_validation_does_not_change_training",
    "tests/callbacks/hyperparameters/test_hyper_params.py",
    "tests/callbacks/hyperparameters/test_learning_rate.py::test_rate_of_each_step_also_after_a_resume",
    "tests/callbacks/writers/test_tensorboard_writer.py",
    "tests/callbacks/saving/test_model_saver.py",
    "tests/callbacks/test_other_values.py",
    # Several towers.
    "tests/trainers/test_replicated.py::test_towers_equal_one[adam]",
    "tests/trainers/test_replicated.py::test_tower_index_random_numbers_and_means",
    "tests/trainers/test_replicated.py::test_single_steps_and_resume_are_exact",
    # Keras, the estimator, the command line, and exports.
    "tests/keras/test_callback.py",
    "tests/keras/test_fit.py::test_model_trains_as_in_fit[class weights]",
    "tests/keras/test_fit.py::test_model_trains_as_in_fit[train_step]",
    "tests/keras/test_trainer.py::test_resume_within_an_epoch_is_exact",
    "tests/keras/test_trainer.py::test_seeds",
    "tests/estimator/test_estimator.py::test_every_example_counts_once",
    "tests/estimator/test_estimator.py::test_resumed_run_is_exact",
    "tests/estimator/test_messages.py",
    "tests/test_cli.py::test_run_and_rerun",
    "tests/actions/test_evaluate.py",
    "tests/actions/test_restore.py",
)
"""The beginnings of the names of the tests that are run with other versions of Python, TensorFlow and Keras, too.

They are to show the contract, and take three minutes on two processors.
"""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two workers for each processor: many tests wait for other processes."""
    return (os.cpu_count() or 2) * 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of `COMPATIBILITY`, and put the files that hold long tests first.

    Then the workers end at about the same time.
    """
    for item in items:
        if item.nodeid.startswith(COMPATIBILITY):
            item.add_marker("compatibility")
    long = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    # Tests need no durability. Right after an installation, while the disk is still writing, a single
    # fsync can take a minute.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def _no_search_through_old_graphs() -> Iterator[None]:
    # TensorFlow never frees the bodies of its loops, thousands of objects for each trainer. The collector must not
    # search through those of all earlier tests again and again: that took more than half of the suite's time.
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """A directory for a run, which does not exist yet."""
    return tmp_path / "experiment"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory; the repository's `models` are imported again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = forget_models()
    yield tmp_path
    forget_models()
    sys.modules.update(kept)


def forget_models() -> dict[str, ModuleType]:
    """Forget the imported modules of `models` and of the working directory: a run may have changed their config.

    Returns:
        those that were there.
    """
    homes = (f"{ROOT}/models", f"{Path.cwd()}/")
    found = {name: module for name, module in sys.modules.items() if _home(module).startswith(homes)}
    for name in found:
        del sys.modules[name]
    importlib.invalidate_caches()
    return found


def _home(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), "")
