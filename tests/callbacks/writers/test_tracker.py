"""The common base of writers for experiment trackers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from prototrain import Callback
from prototrain.callbacks import ModelSaver, SaveOnExit, Summaries
from prototrain.callbacks.writers.tracker import Tracker
from prototrain.errors import CallbackError
from prototrain.experiment.record import Outcome
from tests.callbacks.helpers import Fails, Puts
from tests.tiny import At, CountingTrainer


class Server:
    """A tracker: runs by id, each a list of (name, step, value)."""

    def __init__(self) -> None:
        self.runs: dict[str, list[tuple[str, int, float]]] = {}
        self.outcomes: list[Outcome] = []
        self.is_down = False


class Writer(Tracker):
    extra = "none"

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.server = server

    def connect(self, run: str | None) -> str:
        if self.server.is_down:
            raise ConnectionError("no answer")
        run = run if run in self.server.runs else f"run{len(self.server.runs)}"
        self.server.runs.setdefault(run, [])
        return run

    def send(self, values: Mapping[str, Any], step: int) -> None:
        if self.server.is_down:
            raise ConnectionError("no answer")
        assert self._run is not None
        self.server.runs[self._run] += [(name, step, value) for name, value in values.items()]

    def close(self, outcome: Outcome) -> None:
        if self.server.is_down:
            raise ConnectionError("no answer")
        self.server.outcomes.append(outcome)


def run(experiment: Path, server: Server, *callbacks: Callback, steps: int = 6, resume: bool = True) -> CountingTrainer:
    trainer = CountingTrainer(experiment=experiment)
    trainer.train([Summaries().every(steps=1), Writer(server), *callbacks], max_steps=steps, resume=resume)
    return trainer


def steps_of(server: Server, run: str = "run0", name: str = "trn/loss") -> list[int]:
    return [step for found, step, _ in server.runs[run] if found == name]


def test_one_tracker_run_per_run(experiment: Path) -> None:
    server = Server()
    with pytest.raises(RuntimeError):
        run(experiment, server, ModelSaver().every(steps=2), Puts(s5={"vld/loss": float("nan")}), Fails(5))
    assert steps_of(server) == [1, 2, 3, 4, 5] and server.outcomes == [Outcome("failed", "RuntimeError: on purpose")]
    # The checkpoint is of step 4: repeated steps are sent again.
    run(experiment, server, SaveOnExit(), Puts(s5={"new": 7}))
    found = steps_of(server)
    assert found == [1, 2, 3, 4, 5, 5, 6] and steps_of(server, name="new") == [5]
    # A fresh start creates another run, and so does a resume whose run was deleted.
    run(experiment, server, resume=False, steps=2)
    assert steps_of(server, "run1") == [1, 2] and steps_of(server) == found
    assert [outcome.state for outcome in server.outcomes] == ["failed", "finished", "finished"]


def test_training_continues_while_the_server_is_down(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server()
    goes, comes_back = (partial(setattr, server, "is_down", down) for down in (True, False))
    run(experiment, server, At(2, goes), At(4, comes_back))
    assert steps_of(server) == [1, 2, 5, 6] and server.outcomes == [Outcome("finished")]
    run(experiment, server, At(2, goes), resume=False)
    with pytest.raises(CallbackError, match="Writer cannot begin: ConnectionError: no answer"):
        run(experiment, server)
    said = capsys.readouterr().out
    assert [said.count(f"run {name} is not complete: ConnectionError: no answer") for name in server.runs] == [1, 1]
