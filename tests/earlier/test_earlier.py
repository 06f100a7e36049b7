"""Checkpoints of an earlier version are resumed, exactly."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.earlier.programs import HERE, PROGRAMS, SAVED_AT, content, train

MACHINE = ("processor", "python", "numpy", "tensorflow", "keras", "processors")


def changed_machine(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What a resume line says of versions and processors that are not those of a checkpoint."""
    then = {"processor": "not recorded", **then}
    return [f"{key} was {then[key]} and is {now[key]}" for key in MACHINE if then[key] != now[key]]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_checkpoint_of_an_earlier_version_is_resumed(name: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / f"step-{SAVED_AT:010d}"
    shutil.copytree(HERE / name, checkpoint)
    recorded = json.loads((checkpoint / "meta.json").read_text(encoding="utf-8"))["meta"]["provenance"]
    trainer = PROGRAMS[name](tmp_path)
    train(trainer)
    differences = changed_machine(recorded, trainer.provenance())
    how = f"not bit-exact, because {'; '.join(differences)}" if differences else "exact"
    assert trainer.storage.resume_line() == f"resumed at step {SAVED_AT}, {how}"
    found = content(trainer)
    with np.load(HERE / f"{name}.npz") as expected:
        for entry in expected.files:  # a later version may hold more
            if differences:
                np.testing.assert_allclose(found[entry], expected[entry], rtol=1e-5, atol=1e-6, err_msg=entry)
            else:
                np.testing.assert_array_equal(found[entry], expected[entry], err_msg=entry)
