"""What every test stands on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from prototrain.towers import make_cpu_devices

# Devices that trainers of several towers can use; TensorFlow makes them at its start or never.
make_cpu_devices(4)

ROOT = Path(__file__).parent.parent


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """A directory for a run, which does not exist yet."""
    return tmp_path / "experiment"
