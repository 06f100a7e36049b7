"""Workers on Ray: results, lost and failing workers, and a stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from prototrain.distributed.ray import run
from prototrain.errors import ConfigError

pytest.importorskip("ray")
pytest.importorskip("pandas")  # which Ray Train needs

SCRIPT = str(Path(__file__).with_name("several.py"))
TIMEOUT = 500


def start(*arguments: Any) -> subprocess.Popen[str]:
    command = [sys.executable, SCRIPT, *map(str, arguments)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        output, _ = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    return process.returncode, output


def losses(directory: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["trn/loss"] for row in rows if "trn/loss" in row}


def test_more_minimal_workers_than_workers_are_refused() -> None:
    with pytest.raises(ConfigError, match="min_workers"):
        run(print, workers=2, min_workers=3)


@pytest.mark.drill
def test_lost_workers_and_a_stop_change_no_result(tmp_path: Path) -> None:
    """One worker is killed, after the restart one is stopped (SIGSTOP), and after the next Ctrl-C is pressed."""
    directory = tmp_path / "run"
    process = start(directory, 2, 1_000_000, "SIGKILL", 15, "SIGSTOP", 35)
    end = time.monotonic() + TIMEOUT
    while not list(directory.glob("checkpoints/step-*5?")) and time.monotonic() < end and process.poll() is None:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    code, output = finish(process)
    assert code in (130, -signal.SIGINT), output
    assert output.count("all workers start again from the newest checkpoint (restart ") >= 2
    found = losses(directory)
    newest = max(path.name for path in (directory / "checkpoints").iterdir())
    assert newest == f"step-{len(found):010d}" and sorted(found) == list(range(1, len(found) + 1))
    first, *others = json.loads((directory / "run.json").read_text())["parts"]
    assert len(others) == 2 and all(part["cause"] for part in others) and first["start"] == "fresh"
    assert "was repeated with a different" not in output and output.count("resumed at step") >= 2
    end = time.monotonic() + 60
    while (left := _of_session(process.pid)) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == []


@pytest.mark.slow
def test_user_error_ends_the_run(tmp_path: Path) -> None:
    code, output = finish(start(tmp_path / "run", 2, 1000, "fail", 15))
    assert code == 1
    assert "ClusterError: worker 1 (" in output and "failed: RuntimeError: a callback failed" in output
    assert "start again" not in output
    assert (tmp_path / "run" / "checkpoints" / "step-0000000015").is_dir()


def _of_session(session: int) -> list[int]:
    """The processes of a session that are still there."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(entry.parent.name))
    return found
