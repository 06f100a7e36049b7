"""Checks for a user's own tests.

from prototrain.testing import verify

def test_training_resumes_exactly():
    result = verify("models.mine", "-s", "model.batch_size=8", steps=20)
    assert result, str(result)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from prototrain.verify import Difference, ProgramError, Result, run_command
from prototrain.verify import verify as verify_command

__all__ = ["Difference", "ProgramError", "Result", "verify"]


def verify(
    program: str | Path | Sequence[str],
    *arguments: str,
    steps: int = 60,
    interruptions: int = 3,
    seed: int = 0,
    keep: str | Path | None = None,
) -> Result:
    """Find out whether a program repeats itself and resumes exactly after a kill, as `prototrain verify` does.

    Args:
        program: a model's module, such as ``"models.mine"``; the path of a script (``.py``); or a command as a list.
        arguments: options of `prototrain run` for a model, arguments of a script.
        steps: how many steps each trainer makes, at most.
        interruptions: how often the run is interrupted.
        seed: of the steps at which it is saved and interrupted.
        keep: a new directory for the records, the experiments and the output; by default a temporary one.

    Returns:
        the result: true if the program repeats itself and resumes exactly; its `where` is "data", "state" or
        "randomness" if not, and its text is that of the command.

    Raises:
        ProgramError: the program failed, or has not trained.
    """
    if isinstance(program, str | Path):
        is_script = str(program).endswith(".py")
        command = [sys.executable, str(program), *arguments] if is_script else run_command(str(program), arguments)
    else:
        command = [*program, *arguments]
    return verify_command(command, steps=steps, interruptions=interruptions, seed=seed, keep=keep)
