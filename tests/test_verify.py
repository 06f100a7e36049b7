"""`prototrain verify`: comparison of records, the command line, and programs that do and do not resume exactly."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prototrain.cli import main
from prototrain.errors import ConfigError
from prototrain.testing import verify
from prototrain.verify import OF_CALLBACK, compare
from tests.conftest import ROOT
from tests.preloaded import Program

Event = dict[str, Any]
PROGRAMS = ROOT / "tests" / "verify_programs.py"


def event(kind: str, step: int, **more: Any) -> Event:
    return {"kind": kind, "trainer": "1", "step": step, **more}


def start(step: int, *, lost: list[str] | None = None, **variables: str) -> Event:
    return event("start", step, variables=variables, lost=lost or [])


def made(step: int, *, batch: str = "", loss: float = 0.0, w: str = "") -> Event:
    return event(
        "step", step, batches=[batch or f"b{step}"], scalars={"loss": loss.hex()}, variables={"w": w or f"w{step}"}
    )


def end(step: int, **variables: str) -> Event:
    return event("end", step, variables={"w": f"w{step}", **variables})


KILL = event("interrupt", 3, signal="SIGKILL")
FIRST = [start(0, w="w0"), made(1), made(2), event("saved", 2), made(3), made(4), event("saved", 4), end(4)]
BEGUN = [start(0, w="w0"), made(1), made(2), event("saved", 2), made(3), KILL]

CASES: dict[str, tuple[list[Event], str | None, int, str]] = {
    "the same": ([start(2), made(3), made(4), end(4)], None, 0, ""),
    "another batch": ([start(2), made(3), made(4, batch="x"), end(4)], "data", 4, "batch"),
    "another loss": ([start(2), made(3, loss=0.5)], "randomness", 3, "another loss (0.5, was 0.0)"),
    "a loss that differs in its last bit": ([start(2), made(3, loss=5e-324)], "randomness", 3, "another loss"),
    "other variables behind the step": ([start(2), made(3, w="x")], "randomness", 3, "another w"),
    "other variables right after the restore": ([start(2, lost=["w"]), made(3)], "state", 2, "w is not"),
    "a lost callback": ([start(2, lost=[f"{OF_CALLBACK}c"]), made(3), made(4, loss=1.0)], "state", 2, "callback c"),
    "the start again": ([start(0, w="w0"), made(1)], "state", 0, "checkpoint of step 2"),
    "a step that is not made": ([start(2), made(3), end(3)], "state", 4, "not made"),
    "another end": ([start(2), made(3), made(4), end(4, v="x")], "randomness", 4, "v at the end"),
    "another scalar of a callback": (
        [start(2), made(3), event("scalars", 3, scalars={"my/count": "0x1p+0", "vld/loss": "0x1p+0"})],
        "randomness",
        3,
        "my/count",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_first_difference(name: str) -> None:
    after, where, step, words = CASES[name]
    scalars = event("scalars", 3, scalars={"my/count": "0x1p+1"})
    found = compare([*FIRST, scalars], [*BEGUN, *after])
    if where is None:
        assert found is None
    else:
        assert found is not None and (found.where, found.step) == (where, step) and words in found.what


def test_different_initial_variables() -> None:
    found = compare(FIRST, [start(0, w="x"), *FIRST[1:]])
    assert found is not None and (found.where, found.step) == ("state", 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["verify", "train.py"], "-- python train.py"),
        (["verify", "models.simple", "--steps", "0"], "whole number"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2 and words in capsys.readouterr().err


def forked(command: list[str], *, stdout: Any, env: dict[str, str], **_: Any) -> Any:
    """Replaces `subprocess.run` by a forked process with TensorFlow already imported, which saves seconds."""
    code, said = Program(command[1:], env).finish()
    os.write(stdout.fileno(), said.encode())
    return SimpleNamespace(returncode=code)


@pytest.fixture
def _forked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("prototrain.verify.subprocess.run", forked)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_forked")
def test_failing_program_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "idle.py").write_text("print('nothing to do')")
    with pytest.raises(SystemExit) as exit_:
        main(["verify", "--", sys.executable, "idle.py"])
    assert exit_.value.code == 3 and "nothing to do" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("_forked")
def test_too_few_steps_to_resume() -> None:
    with pytest.raises(ConfigError, match="too few to interrupt"):
        verify(PROGRAMS, "unsaved callback", steps=2)


@pytest.mark.slow
@pytest.mark.usefixtures("_forked")
@pytest.mark.parametrize(
    ("program", "where"),
    [
        ("forgetful callback", "state"),
        ("generator", "data"),
        ("trainers", None),
        ("unsaved callback", "randomness"),
        ("unseeded", "data"),
    ],
)
def test_programs(program: str, where: str | None, tmp_path: Path) -> None:
    result = verify(PROGRAMS, program, steps=12, interruptions=2 if where is None else 1)
    assert result.where == where and bool(result) == (where is None), str(result)
    assert result.repeats == (program != "unseeded")
    assert not list(tmp_path.iterdir())  # the experiments were in another directory


@pytest.mark.slow
@pytest.mark.usefixtures("_forked")
def test_model_on_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    keys = ["trainer.summary_save_interval=3", "trainer.validation_step_interval=4"]
    options = ["-s", keys[0], "-s", keys[1], "--steps", "12", "--interruptions", "2"]
    assert main(["verify", "models.simple", *options]) == 0
    said = capsys.readouterr().out
    assert "12 steps twice" in said and "12 batches" in said and "SIGTERM" in said
