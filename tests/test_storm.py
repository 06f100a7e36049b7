"""A short kill storm; `python -m tests.storm --kills 100` is the long one."""

from __future__ import annotations

from itertools import chain, repeat
from pathlib import Path
from random import Random

import pytest

from tests.preloaded import Program
from tests.storm import start_interpreter, storm


@pytest.mark.slow
def test_killed_run_equals_an_uninterrupted_run(tmp_path: Path) -> None:
    # The reference runs in a separate interpreter with another hash seed, which must not change the result.
    starts = chain([start_interpreter], repeat(Program))
    problems = storm(
        "towers", tmp_path, steps=120, kills=2, random=Random(0), start=lambda program: next(starts)(program)
    )
    assert problems == []
