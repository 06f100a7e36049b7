"""Trials in processes: all ways to end, and a killed sweep."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from prototrain.errors import SweepError
from prototrain.experiment import checkpoint_steps
from prototrain.sweeps import processes
from prototrain.sweeps.plan import Plan
from prototrain.sweeps.processes import Ending, run_in_processes
from prototrain.sweeps.reporter import Link
from prototrain.sweeps.space import from_mapping
from prototrain.sweeps.study import Study, Trial, sqlite_url
from prototrain.system.signals import StopRequest
from tests.preloaded import Program
from tests.test_cli import MODEL
from tests.tiny import environment, tiny_config

pytestmark = pytest.mark.usefixtures("scratch")


class StandIn:
    """Runs trials without a process; the batch size determines how they end."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[list[str], str | None]] = {}
        self.waits = threading.Event()

    def __call__(self, trial: Trial, arguments: list[str], gpus: str | None, stop: threading.Event) -> Ending:
        size = trial.values["model.batch_size"]
        self.seen[size] = arguments, gpus
        trial.report({"vld/loss": (1, float(size)), "trn/loss": (1, 0.0)})
        if size in (1, 7, 9):
            trial.experiment.directory.mkdir(parents=True, exist_ok=True)
            state = "running" if size == 9 else "finished"
            trial.experiment.record.write_text(json.dumps({"parts": [{"started": 1.0, "state": state}]}))
        if size == 6:
            self.waits.set()
            stop.wait()
        endings = {
            2: (1, "a warning\nprototrain: error: step 3 failed in the data: disk"),
            3: (-signal.SIGKILL, ""),
            4: (-signal.SIGSEGV, ""),
            5: (7, ""),
            6: (143, ""),
            7: (255, "as if all were well"),
            8: (255, "prototrain: error: it says so itself"),
            9: (0, "all were well"),
            10: (1, "  File m.py\nRuntimeError: the first line\nanother line\nin trigger_step of Mine"),
        }
        if size not in endings:
            trial.report({"vld/loss": (2, size / 2)})
        return endings.get(size, (0, ""))


def open_study(*sizes: int, objective: str = "vld/loss") -> Study:
    space = from_mapping({"model.batch_size": list(sizes)})
    plan = Plan(config=tiny_config(), space=space, trials=None, objective=objective, mode="min")
    return Study(plan, storage=sqlite_url(Path("study.db")), pruner="none")


def run(study: Study, stand_in: StandIn, *, jobs: int = 2, stop: StopRequest | None = None) -> list[str]:
    said: list[str] = []
    stop = stop or StopRequest(said.append)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "run_process", stand_in)
        run_in_processes(study, ["run", "m", "-s", "model.num_steps=9"], jobs=jobs, stop=stop, say=said.append)
    return said


def test_outcomes_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    study, stand_in = open_study(1, 2, 3, 4, 5, 7, 8, 9, 10), StandIn()
    said = run(study, stand_in)
    study.close()
    assert sorted(line.partition(" (")[0] for line in said if "runs" not in line) == [
        "trial 0 finished: vld/loss 0.5 at step 2",
        "trial 1 failed: step 3 failed in the data: disk",
        "trial 2 killed by SIGKILL",
        "trial 3 failed: crashed: Segmentation fault",
        "trial 4 failed: exit code 7",
        "trial 5 interrupted: the server that had started it is gone, and with it the exit code",
        "trial 6 failed: it says so itself",
        "trial 7 failed: the process ended with exit code 0 before the run had ended",
        "trial 8 failed: RuntimeError: the first line",
    ]
    states = ["finished", "failed", "stopped", "failed", "failed", "stopped", "failed", "failed", "failed"]
    assert [outcome.state for outcome in study.result().trials] == states
    *_, last = (line for line in said if "runs" not in line and "killed" not in line and "gone" not in line)
    assert "7 of 9, best 0.5 in trial 0, about " in last
    arguments, gpus = stand_in.seen[1]
    assert " ".join(arguments) == ("run m -s model.num_steps=9 -s model.batch_size=1 -s trainer.experiment_name=tiny-0")
    assert gpus == "4,6" and stand_in.seen[2][1] == "5,7"
    assert [line for line in run(open_study(1, 2, 3, 4, 5, 7, 8, 9, 10), StandIn()) if "runs" in line] == [
        "trial 2 runs: model.batch_size=3",
        "trial 5 runs: model.batch_size=7",
    ]  # the same command continues only the killed trials


def test_stop_ends_all_trials() -> None:
    stop, stand_in = StopRequest(print), StandIn()
    thread = threading.Thread(target=lambda: stop.request(signal.SIGINT) if stand_in.waits.wait(60) else None)
    thread.start()
    said = run(open_study(6, 1), stand_in, jobs=1, stop=stop)
    thread.join()
    assert said == ["trial 0 runs: model.batch_size=6", "trial 0 stopped"]


def test_unmeasured_objective_ends_the_sweep() -> None:
    study = open_study(1, 6, objective="vld/los")
    match = r"trial \d has no scalar 'vld/los' to go by; it has: vld/loss, trn/loss; did you"
    with pytest.raises(SweepError, match=match), closing(study):
        run(study, StandIn())
    assert [outcome.state for outcome in study.result().trials] == ["stopped", "stopped"]


def test_trial_stops_when_its_sweep_is_gone() -> None:
    ours, theirs = Pipe()
    stopped = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        link = Link(Connection(os.dup(theirs.fileno())))
        ours.send_bytes(b"true")
        assert link.report({"vld/loss": (3, 0.5)}) is True
        assert json.loads(ours.recv_bytes()) == {"vld/loss": [3, 0.5]}
        ours.close()
        theirs.close()
        assert link.report({"vld/loss": (4, 0.5)}) is False
        while not stopped.wait(0.01):
            pass
    finally:
        signal.signal(signal.SIGTERM, before)


SLOW = MODEL.replace(
    "    return {",
    """
    import os, time
    def wait(x):
        time.sleep(0.05 * os.path.exists("slow"))
        return x
    slow = lambda x: tf.ensure_shape(tf.numpy_function(wait, [x], tf.float32), [4, 3])
    data = data.map(lambda b: {"x": slow(b["x"]), "y": b["y"]})
    return {""",
)


def sweep_command(*arguments: str) -> list[str]:
    shared = ["-s", "model.num_steps=60", "-s", "trainer.checkpoint_save_interval=5"]
    grid = ["--grid", "model.lr_schedule.constant.value=0.1,0.2", "--jobs", "2"]
    return [sys.executable, "-m", "prototrain.cli", "sweep", "m", *grid, *shared, *arguments]


@pytest.mark.slow
def test_killed_sweep_resumes() -> None:
    Path("m.py").write_text(SLOW)
    Path("slow").touch()
    first = Program(sweep_command()[1:], environment(PYTHONDONTWRITEBYTECODE="1"))
    directories = [Path(f"experiments/e-{number}/checkpoints") for number in range(2)]
    while not all(checkpoint_steps(directory) for directory in directories):
        assert first.returncode is None, first.stdout.read()
        time.sleep(0.05)
    first.kill()
    Path("slow").unlink()
    code, said = Program(sweep_command()[1:], environment(PYTHONDONTWRITEBYTECODE="1")).finish()
    assert code == 0, said
    assert "2 trials, 2 of them begun" in said and "WARNING" not in said
    assert re.search(r"^again +prototrain run m -s model.num_steps=60 -s trainer.checkpoint", said, re.MULTILINE)
    for number, directory in enumerate(directories):
        assert f"trial {number} finished: vld/loss" in said
        log = (directory.parent / "train.log").read_text()
        assert re.search(r"^start +resumed at step (\d+); data: ", log, re.MULTILINE)
        assert "SIGTERM: stopping after this step and saving" in log  # because its sweep has ended
        assert checkpoint_steps(directory)[-1] == 60


@pytest.mark.slow
def test_ctrl_c_during_the_import_stops_the_sweep() -> None:
    Path("m.py").write_text(MODEL)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    unbuffered = environment(PYTHONUNBUFFERED="1")
    with subprocess.Popen(sweep_command(), env=unbuffered, start_new_session=True, **pipes) as sweep:
        assert sweep.stdout is not None
        while "trial 0 runs" not in sweep.stdout.readline():
            assert sweep.poll() is None
        os.killpg(sweep.pid, signal.SIGINT)  # it also reaches the fork server
        said = sweep.stdout.read()
    assert sweep.returncode == 130 and "trial 0 stopped" in said and "Traceback" not in said
