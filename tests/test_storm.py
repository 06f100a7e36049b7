"""A short kill storm; `python -m benchmarks.storm --kills 100` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.storm import main


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kills"), [("iterator", 4), ("replay", 2), ("towers", 2), ("run_step", 3)])
def test_a_run_that_is_killed_equals_one_that_is_not(kind: str, kills: int, tmp_path: Path) -> None:
    arguments = ["--kind", kind, "--kills", str(kills), "--steps", "150", "--directory", str(tmp_path)]
    assert main(arguments) == 0
