"""Where a sweep is kept, after a kill and in the hands of others."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import optuna
import pytest

from prototrain.errors import SweepError
from prototrain.sweeps.ownership import TrialLock
from prototrain.sweeps.storage import open_storage, own_database, reporting_failures, sqlite_url


def study_of(path: Path) -> optuna.Study:
    return optuna.create_study(storage=open_storage(str(path)), study_name="s", load_if_exists=True)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    study_of(path).set_user_attr("a", 1)
    return path


@pytest.mark.parametrize("cut", [1, 10, None])
def test_half_a_record_of_a_killed_process_is_dropped(journal: Path, cut: int | None) -> None:
    whole = journal.read_bytes()
    assert whole.endswith(b"\n")
    begun = b'{"op_code": 2, "worker_id": "' if cut is None else b""
    journal.write_bytes(whole[: None if cut is None else -cut] + begun)
    study = study_of(journal)
    study.set_user_attr("b", 2)  # what follows is not appended to the half
    again = study_of(journal)
    assert again.user_attrs == ({"b": 2} if cut else {"a": 1, "b": 2})


def test_a_journal_that_is_half_a_record_and_no_more(tmp_path: Path) -> None:
    for size in (11, 200_000):
        (tmp_path / "journal").write_bytes((b'{"op_code":' + b"1" * size)[:size])
        assert study_of(tmp_path / "journal").user_attrs == {}


@pytest.mark.parametrize("content", [b"a user's\nown notes", b"no line", b'{"op"', b"[1,\n2]"])
def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with suppress(SweepError):
        open_storage(str(path))
    assert path.read_bytes() == content


@pytest.mark.parametrize("line", [b"{not json}", b"5", b"{}", b"[]", b'{"op_code": 99}', b"\xff"])
def test_damage_in_the_middle_is_one_clear_line(journal: Path, line: bytes) -> None:
    journal.write_bytes(line + b"\n" + journal.read_bytes())
    with pytest.raises(SweepError, match=r"cannot open the storage .*journal: it is damaged") as raised:
        study_of(journal)
    assert "\n" not in str(raised.value)


def test_damage_while_a_sweep_lasts_is_one_clear_line(journal: Path) -> None:
    study = study_of(journal)
    with open(journal, "ab") as file:
        file.write(b'{"half\n{}\n')
    with pytest.raises(SweepError, match=r"the journal .* is damaged"), reporting_failures(str(journal)):
        study.get_trials()


def test_pipes_are_not_waited_for_and_links_of_strangers_not_followed(tmp_path: Path) -> None:
    pipe, link, theirs = tmp_path / "pipe", tmp_path / "s.sweep.db", tmp_path / "theirs"
    os.mkfifo(pipe)
    theirs.write_bytes(b"")
    link.symlink_to(theirs)
    for where in (str(pipe), sqlite_url(pipe)):
        with pytest.raises(SweepError, match="is a pipe, not a file"):
            open_storage(where)
    with pytest.raises(SweepError, match=r"s\.sweep\.db is a link to .*theirs"):
        own_database(link)
    for path in (pipe, link):
        lock = TrialLock(path)
        with pytest.raises(SweepError, match="cannot"):
            lock.take()
        with pytest.raises(SweepError, match="cannot"):
            lock.is_taken()
    assert theirs.read_bytes() == b""


@pytest.mark.parametrize("name", ["lr=[0.1]", r"a\b", "x*y", "q?a=b", "{a,b}", "two words", "läße", "-dash", "100%#1"])
def test_a_database_in_an_odd_directory(tmp_path: Path, name: str) -> None:
    directory = tmp_path / name
    directory.mkdir()
    study = optuna.create_study(storage=open_storage(own_database(directory / "s.sweep.db")), study_name="s")
    study.add_trial(optuna.trial.create_trial(value=1.0))
    assert (directory / "s.sweep.db").stat().st_size > 0 and [file.name for file in tmp_path.iterdir()] == [name]
    assert open_storage(own_database(directory / "s.sweep.db")).get_all_studies()[0].study_name == "s"
