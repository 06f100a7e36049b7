"""Workers on Ray, in processes: what they compute, and what happens when one is lost, fails, or the run is stopped."""

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

pytest.importorskip("ray")
pytest.importorskip("pandas")  # which Ray Train needs

SCRIPT = str(Path(__file__).with_name("several.py"))
TIMEOUT = 240


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


@pytest.mark.slow
def test_a_worker_that_is_lost_changes_nothing(tmp_path: Path) -> None:
    code, output = finish(start(tmp_path / "whole", 2, 60))
    assert code == 0, output
    whole = losses(tmp_path / "whole")
    assert sorted(whole) == list(range(1, 61))
    for act in ("SIGKILL", "SIGSTOP"):
        code, output = finish(start(tmp_path / act, 2, 60, act, 35))
        assert code == 0, output
        assert "all workers start again from the newest checkpoint (restart 1 of at most 10)" in output
        assert "resumed at step 3" in output
        assert losses(tmp_path / act) == whole
        parts = json.loads((tmp_path / act / "run.json").read_text())["parts"]
        assert [part.get("restarts") for part in parts] == [None, 1]


@pytest.mark.slow
def test_an_error_of_the_user_ends_the_run(tmp_path: Path) -> None:
    code, output = finish(start(tmp_path / "run", 2, 1000, "fail", 15))
    assert code == 1
    assert "ClusterError: worker 1 (" in output and "failed: RuntimeError: a callback failed" in output
    assert "start again" not in output
    assert (tmp_path / "run" / "checkpoints" / "step-0000000015").is_dir()


@pytest.mark.slow
def test_ctrl_c_saves_and_leaves_nothing_behind(tmp_path: Path) -> None:
    process = start(tmp_path / "run", 2, 1_000_000)
    checkpoints = tmp_path / "run" / "checkpoints"
    end = time.monotonic() + TIMEOUT
    while not list(checkpoints.glob("step-*")) and time.monotonic() < end and process.poll() is None:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    code, output = finish(process)
    assert code in (130, -signal.SIGINT), output
    newest = max(path.name for path in checkpoints.iterdir())
    rows = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert newest == f"step-{max(rows):010d}"
    end = time.monotonic() + 60
    while (left := _of_session(process.pid)) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == []


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
