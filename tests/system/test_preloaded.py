from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prototrain.system.preloaded import Preloaded, Started
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def server() -> Iterator[Preloaded]:
    made = Preloaded(modules=("json", "tests.system.forked"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        made.start("tests.system.forked:main", ["0"], environment=os.environ, stdout=os.open(os.devnull, os.O_WRONLY))
    yield made
    made.close()


def start(server: Preloaded, output: Path, *arguments: str, **about: Any) -> Started:
    with open(output, "ab") as file:
        return server.start(
            "tests.system.forked:main", arguments, environment={"FORKED": "yes"}, stdout=file.fileno(), **about
        )


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        ("7", 7, "7 yes {} "),
        ("kill", -signal.SIGKILL, "kill yes"),
        ("raise", 1, "ValueError: as ordered"),
    ],
)
def test_how_a_process_ends(
    what: str, code: int, said: str, server: Preloaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    process = start(server, tmp_path / "output", what)
    assert process.wait() == code == process.poll() == process.returncode
    assert said.format(tmp_path) in (tmp_path / "output").read_text()
    process.kill()  # does nothing any more


def test_descriptors_keep_their_numbers(server: Preloaded, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    assert start(server, tmp_path / "output", "write", str(writing), descriptors=[writing]).wait() == 0
    os.close(writing)
    assert os.read(reading, 100) == b"written" and os.read(reading, 100) == b""  # the server has let go of it
    os.close(reading)


def test_many_at_once_and_signals(server: Preloaded, tmp_path: Path) -> None:
    processes = [start(server, tmp_path / "output", "wait") for _ in range(4)]
    assert len({process.pid for process in processes}) == 4
    assert [process.poll() for process in processes] == [None] * 4
    for process, signum in zip(processes, (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGTERM), strict=True):
        process.send_signal(signum)
    assert [process.wait() for process in processes][::2] == [-signal.SIGTERM, -signal.SIGKILL]


def test_processes_outlive_their_server(tmp_path: Path) -> None:
    alone = Preloaded(modules=("json",))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        process = start(alone, tmp_path / "output", "wait")
    assert process.pid and process.poll() is None
    alone.close()
    assert process.poll() is None
    process.kill()
    assert process.wait() == -signal.SIGKILL
