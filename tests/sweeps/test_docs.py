"""The commands, Python code and output in docs/sweeps.md are correct."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from prototrain.cli import main
from prototrain.sweeps import processes
from prototrain.sweeps.study import Trial
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("scratch")
PAGE = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ prototrain (.*)$", PAGE, re.MULTILINE)
RUN = [command for command in COMMANDS if "postgresql:" not in command]
VALUES = {
    ("batch_size=16", "method=adam"): 0.18142,
    ("batch_size=16", "method=sgd"): 1.6963,
    ("batch_size=32", "method=adam"): 0.14851,
    ("batch_size=32", "method=sgd"): 1.6758,
}


def stand_in(trial: Trial, arguments: list[str], *_: Any) -> tuple[int, str]:
    """Runs a trial without a process: it has the value that the page shows."""
    line = " ".join(arguments)
    value = next((value for words, value in VALUES.items() if all(word in line for word in words)), 0.5)
    trial.report({"vld/loss": (100, value)})
    return 0, ""


@pytest.mark.parametrize("command", RUN)
def test_commands_print_the_shown_output(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(processes, "fork", stand_in)
        assert main(shlex.split(command)) == 0
    printed = re.sub(r", about [^)]* left", "", capsys.readouterr().out).splitlines()
    shown = re.split(r"^(?=\$|```)", PAGE.partition(f"$ prototrain {command}\n")[2], flags=re.MULTILINE)[0].splitlines()
    shown = re.sub(r", about [^)]* left", "", "\n".join(shown)).splitlines()
    assert [line for line in shown if line not in [*printed, "..."]] == []
    assert Path("shared.journal").is_file() == ("shared.journal" in command)


@pytest.mark.slow
def test_python_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(block, "docs/sweeps.md", "exec"), {"__name__": "page"})
    assert "experiments/from-python-" in capsys.readouterr().out.splitlines()[-1]
