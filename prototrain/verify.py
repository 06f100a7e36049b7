"""`prototrain verify`: whether a program repeats itself, and whether a killed run of it resumes exactly.

The program runs twice from start to end (A and B) and once more with interruptions (C), each time as a process of its
own with the user's command. `prototrain.recorder` writes down what each of them did; here the records are compared.
Nothing here imports TensorFlow.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from prototrain.errors import ConfigError, PrototrainError
from prototrain.experiment.experiment import VERIFY

Where = Literal["data", "state", "randomness"]
Event = dict[str, Any]
Key = tuple[str, int]

OF_CALLBACK = "callback "
"""What the names of callbacks' states start with in a record."""
_SHOWN_LINES = 20  # of a program that failed
_CAUSES: dict[Where, str] = {
    "data": "the data comes in another order, or is made from something that a checkpoint does not hold",
    "state": "",
    "randomness": "something outside of the checkpoint changes the step, such as an attribute of the trainer or a "
    "callback without state_dict, or random numbers without a saved seed",
}


class ProgramError(PrototrainError):
    """The program under test failed; the message has its command and the last lines of its output."""


@dataclass(frozen=True)
class Difference:
    """The first difference between two runs.

    Attributes:
        step: where it shows.
        where: the batch ("data"), the variables right after the restore ("state"), or what the same batch and the
            same variables gave ("randomness": random numbers, or state that no checkpoint holds).
        what: in words.
    """

    step: int
    where: Where
    what: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was found.

    Attributes:
        repeats: whether two runs from the start were the same bit for bit.
        resumes: whether the interrupted run was the same, too; None if that was not tried, because two runs from the
            start differ.
        steps: how many were made in each run, over all trainers.
        interruptions: names of signals, and the steps they came at.
        difference: the first one, or None.
        batches, scalars, variables, callbacks: how many of them were compared.
    """

    repeats: bool
    resumes: bool | None
    steps: int
    interruptions: Sequence[tuple[str, int]] = ()
    difference: Difference | None = None
    batches: int = 0
    scalars: int = 0
    variables: int = 0
    callbacks: int = 0

    @property
    def ok(self) -> bool:
        """Whether the program repeats itself and resumes exactly."""
        return self.repeats and bool(self.resumes)

    @property
    def where(self) -> Where | None:
        """See `Difference.where`."""
        return None if self.difference is None else self.difference.where

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        difference = "" if self.difference is None else _in_words(self.difference)
        when = ", ".join(f"{name} at {step}" for name, step in self.interruptions)
        repeats = f"yes, {_count(self.steps, 'step')} twice" if self.repeats else f"no: {difference}"
        resumes = "not tried, because two runs from the start differ"
        if self.resumes is not None:
            count = _count(len(self.interruptions), "interruption")
            resumes = f"yes, {count} ({when})" if self.resumes else f"no: {difference}"
        compared = [
            _count(self.batches, "batch", "batches"),
            f"{_count(self.scalars, 'scalar')} a step",
            _count(self.variables, "variable"),
            _count(self.callbacks, "callback's state", "callbacks' states"),
        ]
        rows = {"repeats itself": repeats, "resumes exactly": resumes, "compared": ", ".join(compared)}
        return "\n".join(f"{name:<19} {text}" for name, text in rows.items())

    def as_json(self) -> dict[str, Any]:
        """The same as JSON can hold it."""
        return {"ok": self.ok, "where": self.where, **asdict(self)}


def _in_words(found: Difference) -> str:
    cause = _CAUSES[found.where]
    return f"step {found.step}{found.what}" + (f"; {cause}" if cause else "")


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


# -- comparing --------------------------------------------------------------------------------------------------------


@dataclass
class Record:
    """What one run did.

    Attributes:
        events: as `prototrain.recorder` wrote them, in their order.
    """

    events: list[Event]
    steps: dict[Key, Event] = field(init=False)  # the first time that each step was made
    starts: dict[Key, Event] = field(init=False)
    ends: dict[str, Event] = field(init=False)  # the last end of each trainer
    scalars: dict[tuple[str, int, str], str] = field(init=False)

    def __post_init__(self) -> None:
        def first(kind: str) -> dict[Key, Event]:
            return {(e["trainer"], e["step"]): e for e in reversed(self.events) if e["kind"] == kind}

        self.steps, self.starts = dict(reversed(first("step").items())), first("start")
        self.ends = {event["trainer"]: event for event in self.events if event["kind"] == "end"}
        self.scalars = {}
        for event in self.events:
            if event["kind"] == "scalars":
                for name, value in event["scalars"].items():
                    self.scalars.setdefault((event["trainer"], event["step"], name), value)

    @classmethod
    def read(cls, directory: Path) -> Record:
        """The record in a directory; empty if the program has not trained."""
        path = directory / "record.jsonl"
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        return cls([json.loads(line) for line in lines[:-1]])  # the last line is whole or not there


def compare(first: Record, other: Record, ignored: frozenset[str] = frozenset()) -> Difference | None:
    """Find the first difference.

    Args:
        first: a run without interruptions.
        other: another run, with interruptions or without.
        ignored: names in the state that differ between equal runs.

    Returns:
        None if all that both have recorded is the same.
    """
    saved: dict[str, int] = {}  # the newest checkpoint of each trainer
    lost: dict[str, Difference] = {}  # by trainer: what a restore has not brought back, which may not matter
    after = ""  # which interruption
    for event in other.events:
        trainer, step = event["trainer"], event["step"]
        found: tuple[Where, str] | None = None
        match event["kind"]:
            case "interrupt":
                after = f", after the {event['signal']} at {step}"
            case "saved":
                saved[trainer] = step
            case "start":
                found = _at_start(first, event, saved.get(trainer, 0), ignored)
                if names := [name for name in event["lost"] if name not in ignored]:
                    lost.setdefault(trainer, Difference(step, "state", f"{after}: {_not_restored(names)}"))
            case "step":
                found = _at_step(first.steps.get((trainer, step)), event)
            case "scalars":
                found = _at_scalars(first, event)
        if found is not None:
            if found[0] == "randomness" and trainer in lost:
                return lost[trainer]
            return Difference(step, found[0], f"{after}: {found[1]}")
    missing = [key for key in first.steps if key not in other.steps]
    if missing:
        return Difference(missing[0][1], "state", f"{after}: this step was not made")
    for trainer, then in first.ends.items():
        end = other.ends.get(trainer, then)
        if names := _different(then["variables"], end["variables"], ignored):
            what = f"{after}: same scalars, another {_names(names)} at the end"
            return lost.get(trainer, Difference(end["step"], "randomness", what))
    return None


def _at_start(first: Record, event: Event, saved: int, ignored: frozenset[str]) -> tuple[Where, str] | None:
    """What is wrong at the start of a run, right after the restore if there was one."""
    if event["step"] < saved:
        return "state", (
            f"the run began here again, although there was a checkpoint of step {saved}; does the program start "
            "afresh each time?"
        )
    if names := [name for name in event["lost"] if not name.startswith(OF_CALLBACK)]:
        return "state", _not_restored(names)
    then = None if event["step"] else first.starts.get((event["trainer"], 0))
    if then is not None and (names := _different(then["variables"], event["variables"], ignored)):
        return "state", f"another {_names(names)} before the first step"
    return None


def _not_restored(names: Sequence[str]) -> str:
    return f"right after the restore, {_names(names)} {'is' if len(names) == 1 else 'are'} not what was saved"


def _at_scalars(first: Record, event: Event) -> tuple[Where, str] | None:
    for name, value in event["scalars"].items():
        then = first.scalars.get((event["trainer"], event["step"], name), value)
        if then != value:
            return "randomness", f"same batches, same variables, another {name} ({_pair(value, then)})"
    return None


def _at_step(then: Event | None, now: Event) -> tuple[Where, str] | None:
    if then is None:
        return "state", "the run without interruptions has not made this step"
    if then["batches"] != now["batches"]:
        return "data", "another batch"
    for name in {**then["scalars"], **now["scalars"]}:
        value, before = now["scalars"].get(name), then["scalars"].get(name)
        if value != before:
            return "randomness", f"same batch, same variables, another {name} ({_pair(value, before)})"
    names = _different(then["variables"], now["variables"]) if then["variables"] and now["variables"] else []
    if names:
        return "randomness", f"same batch, same variables, same scalars, another {_names(names)} after the step"
    return None


def _different(then: Mapping[str, str], now: Mapping[str, str], ignored: frozenset[str] = frozenset()) -> list[str]:
    names = [name for name in {**then, **now} if name not in ignored]
    return [name for name in names if then.get(name) != now.get(name)]


def _names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _pair(value: str | None, before: str | None) -> str:
    return f"{_shown(value)}, was {_shown(before)}"


def _shown(value: str | None) -> str:
    try:
        return "nothing" if value is None else repr(float.fromhex(value))
    except (ValueError, OverflowError):
        return value or ""


def _callbacks(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(OF_CALLBACK)]


# -- running ----------------------------------------------------------------------------------------------------------


def verify(
    command: Sequence[str],
    *,
    steps: int = 60,
    interruptions: int = 3,
    seed: int = 0,
    keep: str | Path | None = None,
    announce: Callable[[str], object] = lambda text: None,
) -> Result:
    """Train with a command three times and compare: A and B from start to end, C with interruptions.

    Args:
        command: a program and its arguments, run in the current directory.
        steps: how many steps each trainer makes, at most.
        interruptions: how often C is interrupted: the last time by SIGTERM if there are several, else by SIGKILL.
        seed: of the steps at which checkpoints are written and C is interrupted.
        keep: a new directory for the records, the experiments and the output; by default a temporary one.
        announce: called with a line of text when a run starts.

    Raises:
        ConfigError: `keep` is not empty.
        ProgramError: the program failed, or has not trained.
    """
    chance = random.Random(seed)
    saves = _draw_saves(chance, steps)
    with _directory(keep) as base:
        run = _Runner(command, steps, saves, announce)
        a, b = run(base / "A"), run(base / "B")
        if keep is None:  # checkpoints of large models must not fill the disk
            for name in ("A", "B"):
                shutil.rmtree(base / name / "experiments", ignore_errors=True)
        ends = [(end["variables"], b.ends.get(name, end)["variables"]) for name, end in a.ends.items()]
        # What holds the time, such as a callback that saves by the clock.
        ignored = frozenset(name for then, now in ends for name in _callbacks(_different(then, now)))
        difference = compare(a, b, ignored)
        repeats, resumes = difference is None, None
        planned: list[tuple[str, int, int]] = []
        if repeats:
            planned = _draw_interruptions(chance, list(a.steps), saves, interruptions)
            c = run(base / "C", planned)
            difference = compare(a, c, ignored)
            resumes = difference is None
        ends_of_a = [end["variables"] for end in a.ends.values()]
        return Result(
            repeats=repeats,
            resumes=resumes,
            steps=len(a.steps),
            interruptions=[(signal.Signals(signum).name, step) for _, step, signum in planned],
            difference=difference,
            batches=sum(bool(event["batches"]) for event in a.steps.values()),
            scalars=max(len(event["scalars"]) for event in a.steps.values()),
            variables=sum(len(found) - len(_callbacks(found)) for found in ends_of_a),
            callbacks=sum(len(_callbacks(found)) for found in ends_of_a) - len(ignored),
        )


@contextmanager
def _directory(keep: str | Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="prototrain-verify-", ignore_cleanup_errors=True) as directory:
            yield Path(directory).resolve()
        return
    path = Path(keep).absolute()
    if path.exists() and any(path.iterdir()):
        raise ConfigError(f"{keep} is not empty; name a new directory for the records")
    path.mkdir(parents=True, exist_ok=True)
    yield path.resolve()


def _draw_saves(chance: random.Random, steps: int) -> list[int]:
    """The steps at which all runs write a checkpoint, about ten."""
    gap = max(2, steps // 10)
    found, step = [], 0
    while (step := step + chance.randint(gap // 2 + 1, gap + gap // 2)) < steps:
        found.append(step)
    return found


def _draw_interruptions(
    chance: random.Random, made: Sequence[Key], saves: Sequence[int], count: int
) -> list[tuple[str, int, int]]:
    """When C is interrupted, as (trainer, step, signal): each in a part of the run, behind the first checkpoint, and
    where possible not right at a checkpoint, so that steps are made again."""
    later = [key for key in made[1:-1] if key[1] > min(saves, default=0)] or list(made[:-1]) or list(made)
    count = min(count, len(later))
    found = []
    for number in range(count):
        part = later[len(later) * number // count : len(later) * (number + 1) // count]
        trainer, step = chance.choice([key for key in part if key[1] not in saves] or part)
        found.append((trainer, step, signal.SIGTERM if 1 < count == number + 1 else signal.SIGKILL))
    return [(trainer, step, int(signum)) for trainer, step, signum in found]


@dataclass(frozen=True)
class _Runner:
    """Runs the command until it comes to its end."""

    command: Sequence[str]
    steps: int
    saves: Sequence[int]
    announce: Callable[[str], object]

    def __call__(self, directory: Path, interruptions: Sequence[tuple[str, int, int]] = ()) -> Record:
        directory.mkdir()
        plan = {"steps": self.steps, "saves": self.saves, "interruptions": interruptions}
        (directory / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        done = 0
        while True:
            code = self._run_once(directory, f"{directory.name}, start {done + 1}" if done else directory.name)
            record = Record.read(directory)
            interrupted = sum(event["kind"] == "interrupt" for event in record.events)
            if interrupted == done:
                break
            done = interrupted
        if code != 0:
            self._fail(directory, f"exited with code {code}")
        if not record.steps:
            self._fail(directory, "has not trained: no trainer of prototrain made a step")
        return record

    def _run_once(self, directory: Path, label: str) -> int:
        self.announce(f"run {label}")
        environment = {**os.environ, VERIFY: str(directory)}
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "env": environment}
        with open(directory / "output.txt", "ab") as output:
            try:
                return subprocess.run(self.command, stdout=output, check=False, **options).returncode
            except OSError as error:
                raise ProgramError(f"cannot run {shlex.join(self.command)}: {error.strerror}") from error

    def _fail(self, directory: Path, what: str) -> None:
        lines = (directory / "output.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        shown = "\n".join(f"  {line}" for line in lines[-_SHOWN_LINES:])
        when = f" (run {directory.name})"
        raise ProgramError(f"{shlex.join(self.command)} {what}{when}; its last lines:\n{shown}")


def run_command(model: str, options: Sequence[str] = ()) -> list[str]:
    """The command that trains a model, as `prototrain run` does."""
    return [sys.executable, "-m", "prototrain.cli", "run", model, *options]
