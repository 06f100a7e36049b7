"""Trials on a Ray cluster: each in a process of its own, in an actor that has its resources.

For the sweep a trial's process looks like one of this machine: a thread passes on what goes over its line, what it
prints, and its exit code. A trial whose machine is lost is started again elsewhere, and goes on from its checkpoint.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from prototrain.distributed.ray import connect_ray
from prototrain.experiment.lock import LOCK, is_locked
from prototrain.sweeps.trial import Trial
from prototrain.system.waiting import PATIENCE_SECONDS

_TRIES: Final = 10
_KILLS: Final = (signal.SIGHUP, signal.SIGKILL, signal.SIGTERM)  # of machines that go down
_PASSED_ON: Final = ("PYTHONPATH", "TF_CPP_MIN_LOG_LEVEL")  # of this machine's environment
_KEPT_BYTES: Final = 4000
_POLL_SECONDS: Final = 5.0
_SAVING_SECONDS: Final = 90.0  # for a process whose line is cut to save and end
# Ray holds signals back in all that it starts.
_PROGRAM: Final = """
import signal, sys
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
signal.signal(signal.SIGINT, signal.default_int_handler)
from prototrain.cli import main
sys.exit(main())
"""

Event = tuple[str, Any]
"""What an `Agent` has to say: ("report", bytes), ("ended", (exit code, end of its output)), or ("nothing", None)."""


class Agent:
    """Runs one trial on a machine of the cluster; its methods are called from several threads."""

    def start(self, arguments: Sequence[str], directory: str, sign: str, environment: Mapping[str, str]) -> str | None:
        """Start the trial.

        Args:
            arguments: of `prototrain`.
            directory: to work in, where it is there.
            sign: a file of the sweep, which every machine must see.
            environment: variables besides those of this process.

        Returns:
            why it was not started, or None.
        """
        if os.path.isdir(directory):
            os.chdir(directory)
        if not os.path.exists(sign):
            return (
                f"{os.uname().nodename} does not see {sign}: set trainer.experiment_base_dir to storage that all share"
            )
        self._link, theirs = Pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *arguments, "--report-to", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._output.fileno(),
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )
        return None

    def next(self) -> Event:
        """Wait a moment for what comes next."""
        if not wait([self._link], timeout=_POLL_SECONDS):
            return "nothing", None
        try:
            return "report", self._link.recv_bytes()
        except (EOFError, OSError):
            code = self._process.wait()
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - _KEPT_BYTES))
        return "ended", (code, self._output.read())

    def answer(self, text: bytes) -> None:
        """Answer a report."""
        with suppress(OSError):  # it has ended meanwhile
            self._link.send_bytes(text)

    def signal(self, signum: int) -> None:
        """Send the process a signal."""
        self._process.send_signal(signum)


class RayTrial:
    """A trial's process on the cluster, to be used like a `subprocess.Popen`.

    Args:
        trial: what runs.
        arguments: of `prototrain`.
        link: the line to the sweep.
        stdout: a descriptor for its output.
        environment: variables that it has besides those of the machine.
        make: makes an `Agent` with the trial's resources.
        where: what the cluster is called.
        say: prints a line.
    """

    def __init__(
        self,
        trial: Trial,
        arguments: Sequence[str],
        *,
        link: Connection,
        stdout: int,
        environment: Mapping[str, str],
        make: Callable[[], Any],
        where: str,
        say: Callable[[str], None],
    ) -> None:
        self._trial, self._arguments, self._link, self._stdout = trial, arguments, link, stdout
        self._environment, self._make, self._where, self._say = environment, make, where, say
        self._code: int | None = None
        self._is_stopped = threading.Event()
        self._agent: Any = None
        self._thread = threading.Thread(target=self._run, name=f"trial {trial.number}", daemon=True)
        self._thread.start()

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return None if self._thread.is_alive() else self._code

    def wait(self) -> int:
        """Wait for the end; returns the exit code."""
        self._thread.join()
        return 1 if self._code is None else self._code

    def terminate(self) -> None:
        """Ask it to save and stop."""
        self._is_stopped.set()
        agent = self._agent
        if agent is not None:
            agent.signal.remote(signal.SIGTERM)

    def _run(self) -> None:
        try:
            for _ in range(_TRIES):
                self._code = self._try_once()
                is_killed = any(self._code in (-signum, 128 + signum) for signum in _KILLS)
                if self._is_stopped.is_set() or not is_killed:
                    return
                self._say(f"trial {self._trial.number} is lost with its machine; it is started again elsewhere")
                self._wait_for_lock()
        finally:
            self._link.close()
            os.close(self._stdout)

    def _try_once(self) -> int:
        """Run the trial on some machine of the cluster.

        Returns:
            its exit code; that of SIGKILL if the machine is lost.
        """
        import ray

        agent = self._make()
        try:
            why = self._placed(agent)
            if why is not None:
                os.write(self._stdout, f"prototrain: error: {why}\n".encode())
                return 1
            self._agent = agent
            if self._is_stopped.is_set():
                return 128 + signal.SIGTERM
            return self._passed_on(agent)
        except ray.exceptions.RayError:
            return -signal.SIGKILL
        finally:
            self._agent = None
            with suppress(ray.exceptions.RayError):
                ray.kill(agent)

    def _placed(self, agent: Any) -> str | None:
        """Wait until there is room for the trial, and it has begun; returns why it has not."""
        import ray

        lock = str(self._trial.lock.path.absolute())
        begun = agent.start.remote(list(self._arguments), os.getcwd(), lock, self._environment)
        begin, has_said = time.monotonic(), False
        while not ray.wait([begun], timeout=0.5)[0]:
            if self._is_stopped.is_set():
                return "the sweep was stopped before there was room for this trial"
            if not has_said and time.monotonic() - begin > PATIENCE_SECONDS:
                has_said = True
                self._say(f"trial {self._trial.number} waits for room on {self._where}")
        why: str | None = ray.get(begun)
        return why

    def _passed_on(self, agent: Any) -> int:
        import ray

        while True:
            kind, what = ray.get(agent.next.remote())
            if not self._is_stopped.is_set() and wait([self._link], 0):
                self.terminate()  # nothing is to be read here but the end of the sweep
            if kind == "report":
                agent.answer.remote(self._ask(what))
            elif kind == "ended":
                code, output = what
                os.write(self._stdout, output)
                return int(code)

    def _ask(self, report: bytes) -> bytes:
        """Give the sweep a report; returns its answer."""
        try:
            self._link.send_bytes(report)
            return self._link.recv_bytes()
        except (EOFError, OSError):
            self.terminate()
            return b"false"

    def _wait_for_lock(self) -> None:
        """Let a process that has lost its sweep, but not its machine, save first."""
        end = time.monotonic() + _SAVING_SECONDS
        while time.monotonic() < end and is_locked(self._trial.experiment.directory / LOCK):
            self._is_stopped.wait(0.2)


class OnRay:
    """Starts trials on a cluster.

    Args:
        address: of the cluster, see `prototrain.distributed.ray.connect_ray`.
        jobs: how many trials run at the same time.
        cpus: how many CPUs of Ray's account each takes.
        gpus: how many GPUs, or which part of one, each takes.
        say: prints a line.

    Raises:
        ConfigError: Ray is not installed.
        ClusterError: there is no cluster at the address.
    """

    def __init__(self, address: str, jobs: int, *, cpus: float, gpus: float, say: Callable[[str], None]) -> None:
        self._address, self._cpus, self._gpus, self._say = address, cpus, gpus, say
        self._is_ours = connect_ray(address, max(1, round(jobs * cpus)))

    def start_for(self, trial: Trial) -> Callable[..., RayTrial]:
        """What starts a trial; see `StartProcess`."""

        def start(
            arguments: Sequence[str], *, environment: Mapping[str, str], stdout: int, descriptors: Sequence[int]
        ) -> RayTrial:
            variables = {name: value for name, value in environment.items() if name in _PASSED_ON}
            # A trial with a part of a GPU must not take all of its memory.
            variables |= {"TF_FORCE_GPU_ALLOW_GROWTH": "true"} if self._gpus % 1 else {}
            return RayTrial(
                trial,
                arguments[:-2],  # which name a descriptor of this machine
                link=Connection(os.dup(descriptors[0])),
                stdout=os.dup(stdout),
                environment=variables,
                make=self._make,
                where=self._address,
                say=self._say,
            )

        return start

    def close(self) -> None:
        """Leave the cluster."""
        import ray

        if self._is_ours:
            ray.shutdown()

    def _make(self) -> Any:
        import ray

        return ray.remote(num_cpus=self._cpus, num_gpus=self._gpus, max_concurrency=4)(Agent).remote()
