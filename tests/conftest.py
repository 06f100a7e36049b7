"""What every test stands on."""

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

# Under nohup, and in a shell's background, these signals are ignored: runs and children would keep to that, and tests
# that send one would wait for ever.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parent.parent


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two workers for each processor: many tests wait for processes that they have started."""
    return (os.cpu_count() or 2) * 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that hold long tests first, so that the workers end at about the same time."""
    long = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    # A test does not outlive a power failure. Right after an installation, which the disk is still writing, a single
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
    """An empty working directory, from which the repository's `models` are imported anew."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = forget_models()
    yield tmp_path
    forget_models()
    sys.modules.update(kept)


def forget_models() -> dict[str, ModuleType]:
    """Let modules of `models` and of the working directory be imported anew: a run may have changed their config.

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
