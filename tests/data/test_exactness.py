"""A short walk through the grammar of pipelines; `python -m benchmarks.exactness --pipelines 20000` is the long one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import exactness
from benchmarks.pipelines import Choose, Workshop, pipeline


@st.composite
def codes(draw: st.DrawFn) -> str:
    choose: Choose = lambda values: draw(st.sampled_from(values))  # noqa: E731
    return pipeline(choose)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("files"))


@settings(max_examples=6, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(code=codes())
def _walk(workshop: Workshop, code: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        outcome = exactness.examine(workshop.maker(code), Path(directory), Random(1), by_chance="anything" in code)
        assert not outcome.problem, code


WATCHED = (
    "D.list_files(files, seed=1).interleave(lines, cycle_length=2).shuffle(9).batch(2)",
    "D.range(5).shuffle(9).concatenate(D.range(5).shuffle(9)).batch(2)",
    "D.range(8).shuffle(9).shuffle(9).batch(3)",
    "D.range(8).cache().shuffle(3).batch(3)",
    "D.range(8).map(lambda x: x + tf.random.uniform([], 0, 9, tf.int64)).batch(3)",
    "D.from_generator(anything, output_signature=number).batch(2)",
)


@pytest.mark.parametrize("code", WATCHED)
def test_kinds_that_were_not_exact(code: str, workshop: Workshop, tmp_path: Path) -> None:
    make = workshop.maker(f"{code}.map(lambda x: {{'x': x}})")
    assert exactness.examine(make, tmp_path, Random(1)).problem == ""


def test_pipelines_of_the_grammar(workshop: Workshop) -> None:
    _walk(workshop)
