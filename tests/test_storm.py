"""A short kill storm; `python -m tests.storm --kills 100` is the long one."""

from __future__ import annotations

from itertools import chain, repeat

import pytest

from tests.preloaded import Program
from tests.storm import main, start_interpreter


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["replay", "towers"])
def test_a_run_that_is_killed_equals_one_that_is_not(kind: str) -> None:
    # One reference has an interpreter of its own, with another hash seed: that must not matter either.
    starts = chain([start_interpreter if kind == "replay" else Program], repeat(Program))
    assert main(["--kind", kind, "--kills", "2", "--steps", "120"], lambda program: next(starts)(program)) == 0
