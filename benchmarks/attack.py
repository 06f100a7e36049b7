"""Damage experiments, spoil the machine and send signals; a run must go on, or end with a line, and touch nothing else.

    python -m benchmarks.attack --looks 200 --seed 1

Three kinds of attack are drawn: a file of an experiment is damaged, gone, or something else (a pipe, a link that leads
elsewhere, a directory); the machine is spoiled (`benchmarks.attack_run`); twelve signals come at random moments. After
each, what must hold is looked at:

- every command comes to an end within a minute, without a traceback, with a line that says what is wrong if it fails;
- nothing beside the experiment is written, emptied or deleted;
- a run that says "exact" ends in the same bits as one that nobody has attacked.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final

from benchmarks.attack_run import SABOTAGES
from benchmarks.storm import compare

LONGEST: Final = 60.0  # seconds that a command may take
STEPS: Final = 60
BEGUN: Final = 32  # steps that are made before an attack
KINDS: Final = ("iterator", "run_step", "keras", "async", "estimator")
SIGNALS: Final = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGXCPU", "SIGQUIT", "SIGKILL", "SIGSTOP")
PRECIOUS: Final = ("precious.txt", ".tmp-precious", ".old-precious", "meta.json")  # beside the experiments
UNTOUCHED: Final = "not to be touched\n"
READERS: Final = (["runs"], ["compare"], ["report"], ["plot"])


def _empty(path: Path, outside: Path, random: Random) -> None:
    path.write_bytes(b"")


def _half(path: Path, outside: Path, random: Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _flipped(path: Path, outside: Path, random: Random) -> None:
    content = bytearray(path.read_bytes() or b"\0")
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def _garbage(path: Path, outside: Path, random: Random) -> None:
    path.write_bytes(random.randbytes(1000))


def _gone(path: Path, outside: Path, random: Random) -> None:
    path.unlink()


def _directory(path: Path, outside: Path, random: Random) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path, outside: Path, random: Random) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path, outside: Path, random: Random) -> None:
    path.unlink()
    path.symlink_to(outside / "precious.txt")


def _dangling(path: Path, outside: Path, random: Random) -> None:
    path.unlink()
    path.symlink_to(outside / "not there")


def _linked_directory(path: Path, outside: Path, random: Random) -> None:
    """The directory that the file is in becomes a link to one that is not of the experiment."""
    parent = path.parent
    shutil.rmtree(parent)
    parent.symlink_to(outside)


DAMAGES: Final[tuple[Callable[[Path, Path, Random], None], ...]] = (
    _empty,
    _half,
    _flipped,
    _garbage,
    _gone,
    _directory,
    _pipe,
    _link,
    _dangling,
    _linked_directory,
)


class Attacks:
    """Attacks on copies of one run, and what they came to.

    Args:
        base: a directory for everything.
        random: draws what is done.
    """

    def __init__(self, base: Path, random: Random) -> None:
        self._base = base
        self._random = random
        self._outside = base / "outside"
        self._lay_out()
        self._begun: dict[str, Path] = {}
        self._references: dict[str, Path] = {}
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []

    def prepare(self, kind: str) -> None:
        """Make the run that is attacked, and the one that it is compared with."""
        for runs, name, steps in ((self._begun, "begun", BEGUN), (self._references, "reference", STEPS)):
            runs[kind] = self._base / f"{kind}-{name}"
            code, output = _ended(self._program("nothing", kind, runs[kind], steps))
            if code:
                raise SystemExit(f"the {name} run of kind {kind} failed:\n{output}")

    def damage(self, kind: str) -> None:
        """Damage one file of a run; look at it with the commands that read, then go on with it."""
        directory = self._copy(kind)
        files = sorted(path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
        path, damage = self._random.choice(files), self._random.choice(DAMAGES)
        if damage is _linked_directory and path.parent == directory:
            damage = _link
        what = f"{kind}: {path.relative_to(directory)} {damage.__name__.strip('_').replace('_', ' ')}"
        damage(path, self._outside, self._random)
        command = self._random.choice(READERS)
        given = [str(directory.parent)] if command == ["runs"] else [str(directory)] * (1 + (command == ["compare"]))
        self._look(f"{what}, {command[0]}", ["-m", "prototrain.cli", *command, *given])
        self._go_on(what, kind, directory)

    def spoil(self, kind: str, sabotage: str) -> None:
        """Go on with a run on a spoiled machine, then on a sound one."""
        directory = self._copy(kind)
        self._look(f"{kind}: {sabotage}", self._program(sabotage, kind, directory, STEPS))
        self._go_on(f"{kind}: after {sabotage}", kind, directory)

    def storm(self, kind: str) -> None:
        """Send a run twelve signals, starting it again whenever it has ended."""
        directory, process, sent = self._copy(kind), None, []
        for _ in range(12):
            if process is None or process.poll() is not None:
                process = _start(self._program("nothing", kind, directory, STEPS))
                time.sleep(self._random.uniform(0, 8))
            signum = getattr(signal, name := self._random.choice(SIGNALS))
            sent.append(name)
            process.send_signal(signum)
            time.sleep(self._random.uniform(0, 0.5))
            if signum == signal.SIGSTOP:
                process.send_signal(signal.SIGCONT)
        assert process is not None
        output = _finish(process)[1]
        self._judge(f"{kind}: {' '.join(sent)}", process.returncode, output, may_be_killed=True)
        self._go_on(f"{kind}: after {' '.join(sent)}", kind, directory)

    def _copy(self, kind: str) -> Path:
        directory = Path(tempfile.mkdtemp(dir=self._base)) / "run"
        shutil.copytree(self._begun[kind], directory, symlinks=True)
        return directory

    def _program(self, sabotage: str, kind: str, directory: Path, steps: int) -> list[str]:
        return ["-m", "benchmarks.attack_run", sabotage, kind, str(directory), str(steps)]

    def _look(self, what: str, arguments: list[str]) -> int:
        code, output = _ended(arguments)
        self._judge(what, code, output)
        return code

    def _go_on(self, what: str, kind: str, directory: Path) -> None:
        code, output = _ended(self._program("nothing", kind, directory, STEPS))
        self._judge(f"{what}, going on", code, output)
        if code == 0 and re.search(r"resumed at step \d+, exact", output):
            different = compare(self._references[kind], directory) if (directory / "metrics.jsonl").is_file() else []
            different = [each for each in different if "variables" in each or "plain values" in each]
            self.problems += [f"{what}: said exact, but {each}" for each in different]
            self.counts["went on exactly"] += 1
        else:
            self.counts["ended with a line" if code else "went on and said what is not exact, or from the start"] += 1
        shutil.rmtree(directory.parent)

    def _judge(self, what: str, code: int, output: str, *, may_be_killed: bool = False) -> None:
        self.counts["looks"] += 1
        if code == _HUNG:
            self.problems.append(f"{what}: did not end within {LONGEST:g} s:\n{output[-600:]}")
        elif code < 0 and not may_be_killed:
            self.problems.append(f"{what}: ended by signal {-code}:\n{output[-600:]}")
        if "Traceback (most recent call last)" in output:
            self.problems.append(f"{what}: a traceback:\n{output[-1500:]}")
        elif code > 0 and not re.search(r"\S", output):
            self.problems.append(f"{what}: exit code {code} without a word")
        touched = {path.name: path.read_text() for path in self._outside.iterdir() if path.is_file()}
        if touched != dict.fromkeys(PRECIOUS, UNTOUCHED) or len(list(self._outside.iterdir())) != len(PRECIOUS):
            self.problems.append(f"{what}: wrote, emptied or deleted what is not its own: {touched}")
            shutil.rmtree(self._outside)
            self._lay_out()

    def _lay_out(self) -> None:
        self._outside.mkdir()
        for name in PRECIOUS:
            (self._outside / name).write_text(UNTOUCHED)


_HUNG: Final = -1000


def _start(arguments: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )


def _finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        output, _ = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        process.kill()
        return _HUNG, process.communicate()[0]
    return process.returncode, output


def _ended(arguments: Sequence[str]) -> tuple[int, str]:
    return _finish(_start(arguments))


def main(arguments: list[str] | None = None) -> int:
    """Attack as often as the command line asks for; print the counts, and everything that did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--looks", type=int, default=100, help="how many files are damaged")
    parser.add_argument("--storms", type=int, default=4, help="how many runs get twelve signals")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS, action="append", help="what is trained; by default all of them")
    options = parser.parse_args(arguments)
    kinds = options.kind or list(KINDS)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        attacks = Attacks(Path(scratch), Random(options.seed))
        for kind in kinds:
            attacks.prepare(kind)
        said = 0
        for number in range(options.looks):
            attacks.damage(kinds[number % len(kinds)])
            said = _say(attacks, said)
        for sabotage in [name for name in SABOTAGES if name != "nothing"]:
            for kind in kinds:
                attacks.spoil(kind, sabotage)
                said = _say(attacks, said)
        for number in range(options.storms):
            attacks.storm(kinds[number % len(kinds)])
            said = _say(attacks, said)
    print(f"seed {options.seed}, {time.monotonic() - begin:.0f} s: {dict(attacks.counts)}")
    print(f"{len(attacks.problems)} that did not hold")
    return bool(attacks.problems)


def _say(attacks: Attacks, said: int) -> int:
    for problem in attacks.problems[said:]:
        print(f"DID NOT HOLD: {problem}", flush=True)
    return len(attacks.problems)


if __name__ == "__main__":
    sys.exit(main())
