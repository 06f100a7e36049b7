"""Groups of real processes that end in every way there is, without TensorFlow but for the last test."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from prototrain import cluster
from prototrain.cluster import group_watch, host, work
from prototrain.cluster.places import Here
from prototrain.errors import ClusterError, ConfigError
from prototrain.experiment.record import read_attempts
from tests.cluster import launched
from tests.preloaded import Program

_CONTEXT = multiprocessing.get_context("forkserver")


@pytest.fixture(autouse=True)
def _without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Here, "_start_process", lambda here, *about: host.new_interpreter(*about))


def run(directory: Path, *script: dict[str, Any], workers: int = 2, **options: Any) -> None:
    cluster.run(partial(launched.act, str(directory), list(script)), workers=workers, **options)


def pids(directory: Path) -> list[int]:
    path = directory / "pids"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def none_is_left(directory: Path, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while any(map(psutil.pid_exists, pids(directory))) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(psutil.pid_exists, pids(directory)))


def test_what_is_lost_is_started_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, {"1": ("kill", 3)}, {"0": ("crash", 5)}, {"0": ("done", 9)}, workers=3)
    out = capfd.readouterr().out
    assert "group 0 of 3, because None\n" in out
    assert (
        "was killed by SIGKILL, heard of last at step 3; starting all workers again from the newest checkpoint in 1 s ("
        in out
    )
    assert "(restart 1 of at most 10)" in out and "group 1 of 3, because worker 1 (127.0.0.1:" in out
    assert "group 2 of 3, because worker 0 (127.0.0.1:" in out and "by SIGSEGV, heard of last at step 5" in out
    assert out.count("group ") == 3  # the chief's only
    assert len(pids(tmp_path)) == 9 and none_is_left(tmp_path)


def test_a_fault_of_the_code_ends_the_run_when_it_comes_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        ClusterError, match=r"ended for the second time at the same step: worker 1 .*: ValueError: fail"
    ):
        run(tmp_path, {"1": ("fail", 3)})
    err = capfd.readouterr().err
    assert err.count("has printed:\ngroup ") == 2 and "raise ValueError(what)\nValueError: fail" in err
    with pytest.raises(ClusterError, match=r"the run has ended: worker 0 .* failed: model.batch_size: no"):
        run(tmp_path / "..", {"0": ("mistake", None)}, workers=1)


def test_one_that_is_stopped_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_watch.Limits, "of", lambda seconds: group_watch.Limits(seconds, 30.0))
    with pytest.raises(ClusterError, match=r"ended: worker 1 .* has given no sign of life for 2 seconds"):
        run(tmp_path, {"1": ("freeze", 3)}, max_restarts=0, stall_timeout=2.0)
    assert none_is_left(tmp_path)


@pytest.mark.parametrize(("signum", "error"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_reaches_all(
    tmp_path: Path, signum: int, error: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    def send() -> None:
        while len(pids(tmp_path)) < 2:
            time.sleep(0.02)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.4)
        os.kill(os.getpid(), signum)

    threading.Thread(target=send, daemon=True).start()
    with pytest.raises(error):
        run(tmp_path, {"0": ("wait", 3), "1": ("wait", 3)})
    assert capfd.readouterr().out.count("saving\n") == 1  # the chief's
    assert none_is_left(tmp_path)


def test_workers_whose_supervisor_is_killed_end(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from functools import partial\nfrom prototrain import cluster\nfrom prototrain.cluster import host, places\n"
        "from tests.cluster import launched\n"
        "places.Here._start_process = lambda here, *about: host.new_interpreter(*about)\n"
        f"script = [{{'0': ('wait', 3), '1': ('wait', 3)}}]\n"
        f"cluster.run(partial(launched.act, {str(tmp_path)!r}, script), workers=2)\n"
    )
    program = Program([str(script)], cwd=Path.cwd())
    while len(pids(tmp_path)) < 2:
        time.sleep(0.05)
    program.kill()
    assert none_is_left(tmp_path)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"workers": 0}, "workers must be at least 1"),
        ({"workers": 2, "min_workers": 3}, "min_workers at most as many"),
        ({"max_restarts": -1}, "max_restarts must be at least 0"),
        ({"stall_timeout": 0}, "more than 0 seconds"),
        ({"gpus_per_worker": 1, "workers": 3}, "3 workers with 1 GPUs each need 3, and this machine has 2"),
    ],
)
def test_wrong_arguments(tmp_path: Path, options: Any, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    with pytest.raises(ConfigError, match=wrong):
        run(tmp_path, {}, **options)
    with pytest.raises(ConfigError, match="must be a function of a module"):
        cluster.run(lambda: None, workers=1)


def test_gpus_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7,8,9")
    seats: Any = Here(2, 2).take(lambda: False, None)
    assert [seat.environment["CUDA_VISIBLE_DEVICES"] for seat in seats] == ["4,7", "8,9"]


class _Forked:
    """A worker's process that finds TensorFlow imported, in place of a `subprocess.Popen`."""

    def __init__(self, descriptor: int, stdout: int | None, environment: dict[str, str]) -> None:
        line = multiprocessing.connection.Connection(os.dup(descriptor))
        self._process = _CONTEXT.Process(target=_work, args=(line, environment))
        self._process.start()
        line.close()

    def send_signal(self, signum: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signum)

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> None:
        self._process.join()


def _work(line: Any, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    multiprocessing.set_start_method(None, force=True)
    work._end(work.main(os.dup(line.fileno())))


@pytest.mark.slow
def test_a_run_that_is_healed_comes_to_what_an_undisturbed_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Here, "_start_process", lambda here, *about: _Forked(*about))
    found = {}
    for name, kills in (("whole", []), ("killed", [1, 0])):
        cluster.run(partial(launched.train, str(tmp_path / name), kills), workers=2)
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        found[name] = {row["step"]: {k: v for k, v in row.items() if k.startswith(("trn/", "vld/"))} for row in rows}
        assert [row["step"] for row in rows] == sorted(found[name])
    whole, killed = ({step: row for step, row in rows.items() if row} for rows in found.values())
    assert list(whole) == list(range(1, 41)) and whole == killed
    parts = read_attempts(tmp_path / "killed" / "run.json")
    assert [part.restarts for part in parts] == [0, 1, 2] and [part.workers for part in parts] == [2, 2, 2]
    starts = [str(part.start).partition("; ")[0] for part in parts[1:]]
    assert starts == ["resumed at step 12", "resumed at step 20"]
    assert "worker 1 (127.0.0.1:" in str(parts[1].cause)
    assert "the chief) was killed by SIGKILL" in str(parts[2].cause)
    log = (tmp_path / "killed" / "train.log").read_text()
    assert log.count("fc0/kernel") == 1 and log.count("started again  restart") == 2  # one table for the whole run
    out = capfd.readouterr().out
    assert "worker 1 (127.0.0.1:" in out and "(restart 2 of at most 10)" in out
