"""Fixtures for the tests of callbacks."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from tests.callbacks.helpers import UNLIMITED


@pytest.fixture
def disk() -> Iterator[None]:
    """Removes the limit that `FillsDisk` has set."""
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, UNLIMITED)
