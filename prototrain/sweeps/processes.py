"""Trials as processes: what happens to one of them cannot reach the sweep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Final, Protocol

from prototrain.sweeps.space import as_options, as_settings
from prototrain.sweeps.storage import FAILURES
from prototrain.sweeps.study import Study
from prototrain.sweeps.summary import Progress
from prototrain.sweeps.trial import Trial
from prototrain.system.signals import StopRequest

_TICK_SECONDS: Final = 0.5
_KILLS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM, signal.SIGXCPU)
_OUTPUT_BYTES: Final = 4000


class Process(Protocol):
    """What a `TrialProcess` needs of a `subprocess.Popen`."""

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def terminate(self) -> None: ...


class StartProcess(Protocol):
    """Starts `prototrain` with some arguments; see `Preloaded.start`."""

    def __call__(
        self, arguments: Sequence[str], *, environment: Mapping[str, str], stdout: int, descriptors: Sequence[int]
    ) -> Process: ...


class TrialProcess:
    """A trial that runs in a process of its own, which saves and stops when this one dies.

    Args:
        trial: what to run.
        command: what stands behind `prototrain` for what all trials share.
        environment: of the process.
        start: starts it.
    """

    def __init__(
        self, trial: Trial, command: Sequence[str], environment: Mapping[str, str], start: StartProcess
    ) -> None:
        self.trial = trial
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self.link, theirs = Pipe()
        name = {"trainer.experiment_name": trial.experiment.directory.name}
        options = as_options([*trial.settings, *as_settings(name)])
        with theirs:
            self._process = start(
                [*command, *options, "--report-to", str(theirs.fileno())],
                environment=environment,
                stdout=self._output.fileno(),
                descriptors=(theirs.fileno(), trial.lock.fileno()),
            )

    def answer(self) -> None:
        """Take a report and say whether the trial should end; wait for the process if it has closed the connection.

        Raises:
            SweepError: the trial does not measure the objective.
        """
        try:
            newest = json.loads(self.link.recv_bytes())
        except (EOFError, OSError):
            self._process.wait()
            return
        ends = self.trial.report({name: (step, value) for name, (step, value) in newest.items()})
        with suppress(OSError):  # it has ended meanwhile
            self.link.send_bytes(json.dumps(ends).encode())

    def stop(self) -> None:
        """Ask the process to save and stop."""
        self._process.terminate()

    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def conclude(self, *, stopped: bool) -> str:
        """Tell the study what has become of the trial.

        Args:
            stopped: whether it was asked to stop.

        Returns:
            the same in words.
        """
        code = self._process.wait()  # it has ended
        with self._output, self.link:
            if code == 0:
                return self.trial.finish()
            killed = next((signum.name for signum in _KILLS if code in (-signum, 128 + signum)), None)
            if stopped or killed is not None:
                return self.trial.release(None if stopped else killed)
            output = self._last_output()
            lines = [line for line in output.splitlines() if line.strip()] or [f"exit code {code}"]
            crash = f"crashed: {signal.strsignal(-code)}" if code < 0 else None
            return self.trial.fail(crash or lines[-1].removeprefix("prototrain: error: "), output)

    def abandon(self) -> None:
        """Wait for a process that is stopping, and leave the trial for a later command."""
        self._process.wait()
        with suppress(*FAILURES):  # it may be for a failure of the storage that all are stopped
            self.conclude(stopped=True)

    def _last_output(self) -> str:
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - _OUTPUT_BYTES))
        return self._output.read().decode("utf-8", "replace")


def new_interpreter(
    arguments: Sequence[str], *, environment: Mapping[str, str], stdout: int, descriptors: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start `prototrain` in a new interpreter; see `Preloaded.start`."""
    return subprocess.Popen(
        [sys.executable, "-m", "prototrain.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        env=environment,
        pass_fds=tuple(descriptors),
        process_group=0,  # Ctrl-C at the terminal reaches it once, by way of this process
    )


def run_in_processes(
    study: Study,
    command: Sequence[str],
    *,
    jobs: int,
    stop: StopRequest,
    say: Callable[[str], None],
    start_for: Callable[[Trial], StartProcess] = lambda trial: new_interpreter,
) -> None:
    """Run all trials that are left, some of them at the same time.

    Args:
        study: gives the trials.
        command: what stands behind `prototrain` for what all trials share.
        jobs: how many processes.
        stop: while it is requested no trial is begun, and those under way save and stop.
        say: prints a line.
        start_for: what starts the process of a trial.

    Raises:
        SweepError: the trials do not measure the objective, or the storage has failed.
    """
    running: dict[int, TrialProcess] = {}
    stopped = waiting = False
    progress = Progress(study)
    try:
        while True:
            while stop.signum is None and len(running) < jobs and (trial := study.next()) is not None:
                slot = min(set(range(jobs)) - set(running))
                running[slot] = TrialProcess(trial, command, _environment(slot, jobs), start_for(trial))
                say(f"trial {trial.number} runs: {' '.join(trial.settings)}")
            if not running and (stop.signum is not None or not study.is_waiting()):
                return
            if not running and not waiting:
                waiting = True
                say("waiting for trials to save whose sweep has ended")
            if stop.signum is not None and not stopped:
                stopped = True
                for process in running.values():
                    process.stop()
            _attend(list(running.values()))
            for slot, process in list(running.items()):
                if process.has_ended():
                    del running[slot]
                    say(progress.after(process.trial.number, process.conclude(stopped=stopped)))
    finally:
        for process in running.values():
            process.link.close()  # without it they save and stop
        for process in running.values():
            process.abandon()


def _attend(running: Sequence[TrialProcess]) -> None:
    """Answer reports for a moment."""
    if not running:
        time.sleep(_TICK_SECONDS)
        return
    processes: dict[object, TrialProcess] = {process.link: process for process in running}
    for link in wait([process.link for process in running], timeout=_TICK_SECONDS):
        processes[link].answer()


def _environment(slot: int, jobs: int) -> dict[str, str]:
    """The environment of a process; of several GPUs that the user has named each process gets its share."""
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if len(devices) < jobs or jobs == 1:
        return dict(os.environ)
    return {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(devices[slot::jobs])}
