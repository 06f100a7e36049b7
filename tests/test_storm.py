"""A short kill storm; `python -m benchmarks.storm --kills 100` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.storm import main, start_interpreter
from tests.preloaded import Program


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kills"), [("iterator", 4), ("replay", 3), ("towers", 4), ("run_step", 8)])
def test_a_run_that_is_killed_equals_one_that_is_not(kind: str, kills: int, tmp_path: Path) -> None:
    arguments = ["--kind", kind, "--kills", str(kills), "--steps", "300", "--directory", str(tmp_path)]
    # A new interpreter has a new hash seed, which must not matter either.
    assert main(arguments, start_interpreter if kind == "iterator" else Program) == 0
