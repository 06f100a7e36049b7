"""Trials as processes, so that a crash of a trial cannot reach the sweep.

They are forked from a server that has imported TensorFlow, which saves seconds for each trial.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import re
import runpy
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, Final

from prototrain.errors import ExperimentError
from prototrain.experiment.record import Attempt, read_attempts
from prototrain.sweeps.space import as_options, as_settings
from prototrain.sweeps.study import Study, Trial
from prototrain.system.signals import StopRequest

TICK_SECONDS: Final = 0.2
_UNKNOWN: Final = 255  # the exit code of `multiprocessing` for a process whose fork server is gone
_OUTPUT_BYTES: Final = 4000
_SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1)
_KILLS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM, signal.SIGXCPU)

Ending = tuple[int, str]
"""The exit code of a process (or the negative number of the signal that killed it), and the end of its output."""


def run_in_processes(
    study: Study,
    command: Sequence[str],
    *,
    jobs: int,
    stop: StopRequest,
    say: Callable[[str], None],
) -> None:
    """Run all remaining trials, several at a time. Once a stop is requested, all trials save and none begins."""
    running: dict[Future[Ending], tuple[int, Trial]] = {}
    ends = threading.Event()
    with ThreadPoolExecutor(jobs, thread_name_prefix="trial") as pool:
        try:
            while True:
                while stop.signum is None and len(running) < jobs and (trial := study.next()) is not None:
                    slot = min(set(range(jobs)) - {slot for slot, _ in running.values()})
                    settings = as_settings(trial.values)
                    name = f"trainer.experiment_name={trial.experiment.directory.name}"
                    arguments = [*command, *as_options([*settings, name])]
                    say(f"trial {trial.number} runs: {' '.join(settings)}")
                    running[pool.submit(run_process, trial, arguments, _gpus(slot, jobs), ends)] = slot, trial
                if stop.signum is not None:
                    ends.set()
                if not running:
                    if ends.is_set() or not study.is_waiting():
                        return
                    time.sleep(TICK_SECONDS)  # trials whose sweep has ended are saving
                for future in wait(running, timeout=TICK_SECONDS, return_when=FIRST_COMPLETED).done:
                    ending = future.result()
                    _, trial = running.pop(future)
                    say(study.progress(trial.number, _conclude(trial, *ending, stopped=ends.is_set())))
        finally:
            ends.set()
            wait(running)


def _conclude(trial: Trial, code: int, output: str, *, stopped: bool) -> str:
    """Tell the study how a trial has ended; returns a line about it."""
    attempts = _attempts(trial)  # none if the record cannot be read
    if code == 0 and (not attempts or attempts[-1].state == "finished"):
        return trial.finish()
    killed = next((signum.name for signum in _KILLS if code in (-signum, 128 + signum)), None)
    if code == _UNKNOWN and attempts and attempts[-1].state != "failed":
        return trial.release("interrupted: the server that had started it is gone, and with it the exit code")
    if stopped or killed is not None:
        return trial.release("stopped" if stopped else f"killed by {killed}")
    if code < 0:
        return trial.fail(f"crashed: {signal.strsignal(-code)}", output)
    if code == 0:
        return trial.fail("the process ended with exit code 0 before the run had ended", output)
    lines = [line for line in output.splitlines() if line.strip()] or [f"exit code {code}"]
    # An error may have further lines, such as the name of the callback.
    errors = [line for line in lines if _ERROR.match(line)] or lines
    return trial.fail(errors[-1].removeprefix("prototrain: error: "), output)


def _attempts(trial: Trial) -> list[Attempt]:
    with suppress(ExperimentError):
        return read_attempts(trial.experiment.record)
    return []


def _gpus(slot: int, jobs: int) -> str | None:
    """Return the GPUs of a job, or None if CUDA_VISIBLE_DEVICES does not name enough for all jobs."""
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return None if len(devices) < jobs or jobs == 1 else ",".join(devices[slot::jobs])


def run_process(trial: Trial, arguments: list[str], gpus: str | None, stop: threading.Event) -> Ending:
    """Run `prototrain` in a process, which saves and stops when this process dies or `stop` is set.

    `trial` receives the reports of the process; `gpus` are those that the process may use, None for all.
    """
    environment = {**os.environ, **({} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus})}
    resource_tracker.ensure_running()  # if it starts later, it unblocks signals
    # The fork server inherits the mask. Ctrl-C and a closed terminal reach the server, too, but must not end it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    context: Any = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryFile() as output:
        link, theirs = context.Pipe()
        # The descriptor of a file can be passed to the process if it is wrapped in a connection.
        with theirs, Connection(os.dup(output.fileno())) as prints, _starting, _without_main():
            context.set_forkserver_preload(["prototrain.sweeps.preloaded"])
            process = context.Process(target=_run_prototrain, args=(arguments, environment, theirs, prints))
            try:
                process.start()
            except (EOFError, ConnectionError):  # the fork server has just died; this starts another one
                process.start()
        try:
            is_told = False
            with suppress(EOFError, OSError):  # the process has ended
                while True:
                    if not is_told and stop.is_set():
                        is_told = True
                        process.terminate()
                    if link.poll(TICK_SECONDS):
                        newest = {name: (step, value) for name, (step, value) in json.loads(link.recv_bytes()).items()}
                        link.send_bytes(json.dumps(trial.report(newest)).encode())
        finally:
            link.close()
            process.join()
        output.seek(max(0, output.seek(0, os.SEEK_END) - _OUTPUT_BYTES))
        return process.exitcode or 0, output.read().decode("utf-8", "replace")


_starting = threading.Lock()
_ERROR = re.compile(r"prototrain: error: |[A-Za-z_][\w.]*(Error|Exception|Failure): ")


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep `multiprocessing` from running the user's script in the new process."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _run_prototrain(arguments: list[str], environment: dict[str, str], link: Connection, output: Connection) -> None:
    """Run the command `prototrain` in a process of `multiprocessing`."""
    os.setpgid(0, 0)  # Ctrl-C at the terminal reaches the sweep only, which passes it on once
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(os.devnull, "rb") as nothing:
        for number, descriptor in enumerate((nothing.fileno(), output.fileno(), output.fileno())):
            os.dup2(descriptor, number)
    output.close()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["prototrain", *arguments]

    import numpy as np

    from prototrain.sweeps import reporter

    reporter.link = reporter.Link(link)
    np.random.seed()  # otherwise each forked process would draw the same numbers
    try:
        runpy.run_module("prototrain", run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # multiprocessing does not call them
