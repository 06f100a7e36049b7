"""Databases and journal files of a sweep."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from prototrain.errors import SweepError
from prototrain.sweeps.storage import open_storage, sqlite_url


def study_of(path: Path) -> optuna.Study:
    return optuna.create_study(storage=open_storage(str(path)), study_name="s", load_if_exists=True)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    study_of(path).set_user_attr("a", 1)
    return path


@pytest.mark.parametrize("line", [b"{not json}", b'{"op_code": 99}', b"\xff"])
def test_damage_in_the_middle_is_one_clear_line(journal: Path, line: bytes) -> None:
    journal.write_bytes(line + b"\n" + journal.read_bytes())
    with pytest.raises(SweepError, match=r"cannot open the storage .*journal: ") as raised:
        study_of(journal)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["lr=[0.1]", "q?a=b", "{a,b}", "100%#1"])
def test_a_database_in_an_odd_directory(tmp_path: Path, name: str) -> None:
    directory = tmp_path / name
    directory.mkdir()
    study = optuna.create_study(storage=open_storage(sqlite_url(directory / "s.sweep.db")), study_name="s")
    study.add_trial(optuna.trial.create_trial(value=1.0))
    assert (directory / "s.sweep.db").stat().st_size > 0 and [file.name for file in tmp_path.iterdir()] == [name]
    assert open_storage(sqlite_url(directory / "s.sweep.db")).get_all_studies()[0].study_name == "s"
