"""A short kill storm; `python -m tests.storm --kills 100` is the long one."""

from __future__ import annotations

from itertools import chain, repeat
from pathlib import Path

import pytest

from tests.preloaded import Program
from tests.storm import main, start_interpreter


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kills"), [("iterator", 2), ("replay", 2), ("towers", 2), ("run_step", 3)])
def test_a_run_that_is_killed_equals_one_that_is_not(kind: str, kills: int, tmp_path: Path) -> None:
    arguments = ["--kind", kind, "--kills", str(kills), "--steps", "200", "--directory", str(tmp_path)]
    # One reference has an interpreter of its own, with another hash seed: that must not matter either.
    starts = chain([start_interpreter if kind == "iterator" else Program], repeat(Program))
    assert main(arguments, lambda program: next(starts)(program)) == 0
