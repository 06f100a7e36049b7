"""Links, pipes and odd names in an experiment directory from an untrusted source."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from prototrain import Experiment
from prototrain.callbacks import JSONWriter, SaveOnExit, Summaries
from prototrain.cli import main
from prototrain.errors import ExperimentError
from tests.made import make, part
from tests.tiny import CountingTrainer


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A directory outside the experiment, with names that a run deletes in its own directory."""
    directory = tmp_path / "theirs"
    (directory / ".old-step").mkdir(parents=True)
    for name in ("file", ".tmp-x", ".old-step/file"):
        (directory / name).write_text("precious")
    return directory


def content(directory: Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}


def train(experiment: Path) -> None:
    CountingTrainer(experiment=experiment).train([Summaries(), JSONWriter(), SaveOnExit()], max_steps=2)


@pytest.mark.parametrize(
    ("name", "target"), [(".lock", "file"), ("metrics.jsonl", "missing"), ("checkpoints/step-0000000007", "file")]
)
def test_link_out_of_the_directory_is_refused(name: str, target: str, experiment: Path, theirs: Path) -> None:
    (experiment / name).parent.mkdir(parents=True)
    (experiment / name).symlink_to(theirs / target)
    before, there = content(theirs), sorted(experiment.rglob("*"))
    with pytest.raises(ExperimentError, match=f"{name} is a link to .*outside of the directory; an experiment has"):
        train(experiment)
    assert content(theirs) == before and sorted(experiment.rglob("*")) == there
    with pytest.raises(ExperimentError, match="is a link"):
        Experiment(experiment).check_free()


@pytest.mark.parametrize("name", [".lock", "summaries/events"])
def test_pipes_do_not_block(name: str, experiment: Path) -> None:
    (experiment / name).parent.mkdir(parents=True)
    os.mkfifo(experiment / name)
    with pytest.raises(ExperimentError, match="is a pipe"):
        train(experiment)


def test_inner_links_are_allowed(experiment: Path) -> None:
    (experiment / "checkpoints").mkdir(parents=True)
    (experiment / "checkpoints" / "latest").symlink_to("step-0000000002")
    link = experiment.with_name("link")
    link.symlink_to(experiment)
    train(link)
    assert (experiment / "checkpoints" / "latest" / "meta.json").is_file()


def test_lock_must_not_be_a_link(experiment: Path) -> None:
    experiment.mkdir()
    (experiment / "other").write_text("kept\n")
    (experiment / ".lock").symlink_to("other")
    with pytest.raises(ExperimentError, match=r"cannot use the experiment directory .*it is a link \(.*\.lock\)"):
        train(experiment)
    assert (experiment / "other").read_text() == "kept\n"


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"), [("metrics.jsonl", "link"), ("environment.json", "pipe"), ("train.log", "pipe")]
)
def test_readers_skip_and_report_links(
    name: str, kind: str, tmp_path: Path, theirs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "all" / "good", part())
    bad = make(tmp_path / "all" / "bad", part())
    (bad / name).unlink(missing_ok=True)
    if kind == "link":
        (bad / name).symlink_to(theirs / "file")
    else:
        os.mkfifo(bad / name)
    for arguments in (["report", str(bad)], ["compare", str(bad), str(tmp_path / "all" / "good")]):
        assert main(arguments) == 1
        said = capsys.readouterr().err
        assert said.startswith("prototrain: error: ") and said.count("\n") == 1 and str(bad) in said
    assert main(["runs", str(tmp_path / "all")]) == 0
    said = capsys.readouterr()
    assert "150 of 200" in said.out and str(bad / name) in said.err


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


@pytest.mark.parametrize("name", ["a\0b", "n" * 256, "\u00e9" * 128, "fine/" + "n" * 300 + "/fine"])
def test_invalid_directory_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="name of a directory"):
        Experiment(tmp_path / name)
    assert Experiment("n" * 255).exists() is False
