"""Links and odd names in an experiment directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prototrain import Experiment
from prototrain.callbacks import JSONWriter, SaveOnExit, Summaries
from prototrain.cli import main
from prototrain.errors import ExperimentError
from tests.made import make, part
from tests.tiny import CountingTrainer


def train(experiment: Path, max_steps: int, *, fresh: bool = False) -> int:
    trainer = CountingTrainer(experiment=experiment)
    trainer.train([Summaries(), JSONWriter(), SaveOnExit()], max_steps=max_steps, fresh=fresh)
    return trainer.run.began_at


def test_checkpoints_on_another_disk(experiment: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    experiment.mkdir()
    (experiment / "environment.json").write_text("{}")
    (experiment / "checkpoints").symlink_to(other)
    assert train(experiment, 2) == 0 and train(experiment, 4) == 2
    assert sorted(path.name for path in other.iterdir()) == ["step-0000000002", "step-0000000004"]
    assert main(["runs", str(tmp_path)]) == 0
    assert train(experiment, 2, fresh=True) == 0
    assert len(list(other.iterdir())) == 2, "deleting an experiment deletes the link only"
    link = experiment.with_name("link")
    link.symlink_to(experiment)
    assert train(link, 3) == 2


def test_names_are_escaped_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;owned\x07\r\nname"
    rows = [{"step": 1, "time": 1.0, f"trn/{evil}": 0.5, "trn/loss": 1.0}]
    reason = part(state="failed", reason=evil, changes=[[evil, evil, evil]])
    first = make(
        tmp_path / f"a{evil}", reason, rows=rows, config={evil: evil}, environment={"run_id": evil, evil: evil}
    )
    second = make(tmp_path / "b", part(), rows=rows)
    (second / "config.json").write_text("{" + evil)
    commands = [["runs", str(tmp_path)], ["compare", str(first), str(first)], ["compare", str(first), str(second)]]
    for arguments in [*commands, ["report", str(first), "-o", str(tmp_path / evil / "none" / "x")]]:
        main(arguments)
        shown = "".join(capsys.readouterr())
        assert shown and not {"\x1b", "\x07", "\r"} & set(shown)
        assert "name" not in shown.splitlines()
    assert json.loads((first / "run.json").read_text())["parts"][0]["reason"] == evil


def test_too_long_name_of_a_directory(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path / ("n" * 256))
    for use in (experiment.check_free, experiment.lock):
        with pytest.raises(ExperimentError, match="File name too long"):
            use()
    assert not list(tmp_path.iterdir())
