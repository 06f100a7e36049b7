"""`prototrain verify`: checks that a program is reproducible and that a killed run resumes exactly.

The program runs twice from start to end (A and B), and once with interruptions (C). Each run is a process with the
user's command, in which `prototrain.recorder` writes a line per event. This module compares the lines. It does not
import TensorFlow.
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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from prototrain.errors import ConfigError, PrototrainError
from prototrain.experiment.experiment import VERIFY
from prototrain.system.terminal import plain_table, shorten_list

Event = dict[str, Any]
K = TypeVar("K")

OF_CALLBACK = "callback "  # the prefix of the names of callback states in a record
_SHOWN_LINES = 20  # last lines of the output of a failed program
_CAUSES = {
    "data": "; the data comes in another order, or is made from something that a checkpoint does not hold",
    "state": "",
    "randomness": "; something outside of the checkpoint changes the step, such as an attribute of the trainer or a "
    "callback without state_dict, or random numbers without a saved seed",
}


class ProgramError(PrototrainError):
    """The program under test failed; the message contains its command and the last lines of its output."""


@dataclass(frozen=True)
class Difference:
    """The first difference between two runs."""

    step: int  # at which the difference appears
    # "data" if the batch differs; "state" if the variables right after the restore differ; "randomness" if the same
    # batch and variables gave different results, because of random numbers or unsaved state.
    where: str
    what: str  # a description of the difference

    def __str__(self) -> str:
        return f"no: step {self.step}{self.what}{_CAUSES[self.where]}"


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a verification. It is true if the program is reproducible and resumes exactly."""

    repeats: bool  # whether two runs from the start were the same bit for bit
    resumes: bool | None  # whether the interrupted run was the same, too; None if two runs from the start differ
    steps: int  # in each run, over all trainers
    interruptions: Sequence[tuple[str, int]] = ()  # the names of the signals and the steps at which they were sent
    difference: Difference | None = None  # the first one
    compared: Mapping[str, int] = field(default_factory=dict)  # the number of compared batches, variables and so on

    @property
    def where(self) -> str | None:
        """The kind of the difference, see `Difference.where`, or None."""
        return None if self.difference is None else self.difference.where

    def __bool__(self) -> bool:
        return self.repeats and bool(self.resumes)

    def __str__(self) -> str:
        repeats = f"yes, {self.steps} steps twice" if self.repeats else str(self.difference)
        resumes = "not tried, because two runs from the start differ"
        if self.resumes is not None:
            when = ", ".join(f"{name} at {step}" for name, step in self.interruptions)
            resumes = f"yes, after {when}" if self.resumes else str(self.difference)
        compared = ", ".join(f"{number} {what}" for what, number in self.compared.items())
        rows = {"repeats itself": repeats, "resumes exactly": resumes, "compared": compared}
        return plain_table(rows, width=None)

    def as_json(self) -> dict[str, Any]:
        """Return the result as a dict of plain values."""
        return {"ok": bool(self), "where": self.where, **asdict(self)}


def verify(
    program: str | Path | Sequence[str],
    *arguments: str,
    steps: int = 60,
    interruptions: int = 3,
    seed: int = 0,
    keep: str | Path | None = None,
    announce: Callable[[str], object] = lambda text: None,
) -> Result:
    """Check that a program is reproducible and resumes exactly after a kill, as `prototrain verify` does.

    Args:
        program: a model's module, such as ``"models.mine"``; the path of a script (``.py``); or a command as a list.
        arguments: options of `prototrain run` for a model, or arguments of the script or command.
        steps: the maximum number of steps of each trainer.
        interruptions: the number of interruptions. All are SIGKILLs, except that the last of several is a SIGTERM.
        seed: the seed for drawing the steps of saves and interruptions.
        keep: a new directory for the records, the experiments and the output; a temporary one if None.
        announce: called with a line of text when a run starts.

    Returns:
        the result. It is true if the program is reproducible and resumes exactly. Otherwise its `where` is "data",
        "state" or "randomness". Its `str` is the output of `prototrain verify`.

    Raises:
        ConfigError: `keep` is not empty, or the program makes too few steps to resume from a checkpoint.
        ProgramError: the program failed, or trained no step.
    """
    command = [program] if isinstance(program, str | Path) else [*program]
    if isinstance(program, str | Path):
        is_script = str(program).endswith(".py")
        command[:0] = [sys.executable, *([] if is_script else ["-m", "prototrain.cli", "run"])]
    command = [*map(str, command), *arguments]
    chance = random.Random(seed)
    saves = sorted(chance.sample(range(2, steps), k=min(10, (steps - 1) // 2)))
    base = Path(tempfile.mkdtemp(prefix="prototrain-verify-") if keep is None else keep).resolve()
    try:
        base.mkdir(parents=True, exist_ok=True)
        is_used = any(base.iterdir())
    except OSError as error:
        raise ConfigError(f"cannot use the directory {base}: {error.strerror}") from error
    if is_used:
        raise ConfigError(f"{keep} is not empty; name a new directory for the records")

    def run(name: str, interruptions: Sequence[tuple[str, int, int]] = ()) -> list[Event]:
        plan = {"steps": steps, "saves": saves, "interruptions": interruptions}
        events = _run(command, base / name, plan, announce)
        if keep is None:  # checkpoints of large models must not fill the disk
            shutil.rmtree(base / name / "experiments", ignore_errors=True)
        return events

    try:
        a, b = run("A"), run("B")
        end = _ends(a)
        # Ignore callback states that differ between equal runs, for example because they contain the time.
        ignored = {name for name, trainer in _different(end, _ends(b)) if name.startswith(OF_CALLBACK)}
        made = {(event["trainer"], event["step"]): event for event in a if event["kind"] == "step"}
        planned: list[tuple[str, int, int]] = []
        difference = compare(a, b, ignored)
        if repeats := difference is None:
            planned = _draw_interruptions(chance, list(made), saves, interruptions)
            if not planned:
                raise ConfigError(
                    f"the program made {len(made)} steps, too few to interrupt it after a checkpoint; let it make more "
                    f"steps, or give --steps as many as it makes (now {steps})"
                )
            if len(planned) < interruptions:
                announce(f"WARNING: {len(planned)} of {interruptions} interruptions fit into {len(made)} steps")
            c = run("C", planned)
            difference = compare(a, c, ignored)
            if difference is None and not any(event["kind"] == "start" and event["step"] > 0 for event in c):
                what = ": no start continued from a checkpoint, so nothing was resumed"
                difference = Difference(planned[0][1], "state", what)
    finally:
        if keep is None:
            shutil.rmtree(base, ignore_errors=True)
    callbacks = sum(name.startswith(OF_CALLBACK) for name, trainer in end)
    return Result(
        repeats=repeats,
        resumes=difference is None if repeats else None,
        steps=len(made),
        interruptions=[(signal.Signals(signum).name, step) for _, step, signum in planned],
        difference=difference,
        compared={
            "batches": sum(bool(event["batches"]) for event in made.values()),
            "scalars per step": max(len(event["scalars"]) for event in made.values()),
            "variables": len(end) - callbacks,
            "callback states": callbacks - len(ignored),
        },
    )


def _draw_interruptions(
    chance: random.Random, made: Sequence[tuple[str, int]], saves: Sequence[int], count: int
) -> list[tuple[str, int, int]]:
    """Draw the interruptions of C, as (trainer, step, signal)."""
    # After the first checkpoint, also that of an earlier trainer's end, and if possible not at a step with one, so that
    # some steps are repeated.
    first = min(saves, default=made[-1][1] + 1)
    later = [key for key in made[:-1] if key[1] >= first or key[0] != made[0][0]]
    drawn = [key for key in later if key[1] not in saves] or later
    places = sorted(chance.sample(range(len(drawn)), k=min(count, len(drawn))))
    signals = [signal.SIGKILL] * len(places)
    if len(places) > 1:
        signals[-1] = signal.SIGTERM
    return [(*drawn[place], int(signum)) for place, signum in zip(places, signals, strict=True)]


def _run(
    command: Sequence[str], directory: Path, plan: Mapping[str, Any], announce: Callable[[str], object]
) -> list[Event]:
    """Run the command, restart it after each planned interruption, and return its record."""
    directory.mkdir()
    (directory / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    record, interrupted = directory / "record.jsonl", 0
    while True:
        announce(f"run {directory.name}" + f", start {interrupted + 1}" * (interrupted > 0))
        with open(directory / "output.txt", "ab") as output:
            try:
                code = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, VERIFY: str(directory)},
                    check=False,
                ).returncode
            except OSError as error:
                raise ProgramError(f"cannot run {shlex.join(command)}: {error.strerror}") from error
        lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
        events = [json.loads(line) for line in lines]
        before, interrupted = interrupted, sum(event["kind"] == "interrupt" for event in events)
        if interrupted == before:
            break
    has_trained = any(event["kind"] == "step" for event in events)
    if code == 0 and has_trained:
        return events
    what = f"exited with code {code}" if code else "has not trained: no trainer of prototrain made a step"
    said = (directory / "output.txt").read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:]
    shown = "\n".join(f"  {line}" for line in said)
    raise ProgramError(f"{shlex.join(command)} {what} (run {directory.name}); its last lines:\n{shown}")


def compare(first: Sequence[Event], other: Sequence[Event], ignored: Collection[str] = ()) -> Difference | None:
    """Return the first difference between a run without interruptions and another run, or None.

    `ignored` are names in the state that differ between equal runs.
    """
    known: dict[tuple[str, str, int], Event] = {}
    for event in first:
        then = known.setdefault(_key(event), event)
        if event["kind"] == "scalars":
            then["scalars"] = {**event["scalars"], **then["scalars"]}
    saved: dict[str, int] = {}  # step of the newest checkpoint, by trainer
    lost: dict[str, Difference] = {}  # callback states that were not restored, by trainer; these may not matter
    after = ""
    for event in other:
        kind, trainer, step = event["kind"], event["trainer"], event["step"]
        if kind == "interrupt":
            after = f", after the {event['signal']} at {step}"
        elif kind == "saved":
            saved[trainer] = step
        elif found := _difference(known.get(_key(event)), event, saved.get(trainer, 0), ignored):
            difference = Difference(step, found[0], f"{after}: {found[1]}")
            return lost.get(trainer, difference) if difference.where == "randomness" else difference
        elif kind == "start" and (names := [name for name in event["lost"] if name not in ignored]):
            lost.setdefault(trainer, Difference(step, "state", f"{after}: {_not_restored(names)}"))
    made = {_key(event) for event in other}
    lacking = [step for kind, trainer, step in known if kind == "step" and (kind, trainer, step) not in made]
    return Difference(lacking[0], "state", f"{after}: this step was not made") if lacking else None


def _key(event: Event) -> tuple[str, str, int]:
    return event["kind"], event["trainer"], event["step"]


def _difference(then: Event | None, now: Event, saved: int, ignored: Collection[str]) -> tuple[str, str] | None:
    """Compare an event with that of the run without interruptions; returns `where` and `what` differs, or None."""
    if now["kind"] == "start":
        if now["step"] < saved:
            return "state", (
                f"the run began here again, although there was a checkpoint of step {saved}; does the program start "
                "afresh each time?"
            )
        if names := [name for name in now["lost"] if not name.startswith(OF_CALLBACK)]:
            return "state", _not_restored(names)
        if then is None or now["step"] > 0:
            return None
    elif then is None:
        return ("state", "the run without interruptions has not made this step") if now["kind"] == "step" else None
    if then.get("batches") != now.get("batches"):
        return "data", "another batch"
    same = "same batch, same variables"
    before, scalars = then.get("scalars", {}), now.get("scalars", {})
    for name in _different(before, scalars):
        if now["kind"] == "step" or (name in before and name in scalars):
            return "randomness", f"{same}, another {name} ({_shown(scalars.get(name))}, was {_shown(before.get(name))})"
    names = [name for name in _different(then.get("variables", {}), now.get("variables", {})) if name not in ignored]
    if names and now["kind"] == "start":
        return "state", f"another {shorten_list(names, 1)} before the first step"
    where = "at the end" if now["kind"] == "end" else "after the step"
    return ("randomness", f"{same}, same scalars, another {shorten_list(names, 1)} {where}") if names else None


def _ends(record: Sequence[Event]) -> dict[tuple[str, str], str]:
    """Return the digests at the end of the last run of each trainer, by name and trainer."""
    ends = {event["trainer"]: event["variables"] for event in record if event["kind"] == "end"}
    return {(name, trainer): found for trainer, digests in ends.items() for name, found in digests.items()}


def _different(then: Mapping[K, str], now: Mapping[K, str]) -> list[K]:
    return [name for name in {**then, **now} if then.get(name) != now.get(name)]


def _not_restored(names: Sequence[str]) -> str:
    return f"right after the restore, {shorten_list(names, 1)} {'is' if len(names) == 1 else 'are'} not what was saved"


def _shown(value: str | None) -> str:
    try:
        return "nothing" if value is None else repr(float.fromhex(value))
    except (ValueError, OverflowError):
        return value or ""
