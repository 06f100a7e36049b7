"""Databases and journal files of a sweep."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from prototrain.errors import SweepError
from prototrain.sweeps.study import open_storage, sqlite_url


@pytest.mark.parametrize("line", [b"{not json}", b'{"op_code": 99}'])
def test_damaged_journal_is_one_line(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "journal"
    optuna.create_study(storage=open_storage(str(path)), study_name="s")
    path.write_bytes(line + b"\n" + path.read_bytes())
    with pytest.raises(SweepError, match=r"cannot open the storage .*journal: ") as raised:
        open_storage(str(path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["q?a=b", "{a,b}", "100%#1"])
def test_database_in_an_odd_directory(tmp_path: Path, name: str) -> None:
    directory = tmp_path / name
    directory.mkdir()
    optuna.create_study(storage=open_storage(sqlite_url(directory / "s.sweep.db")), study_name="s")
    assert (directory / "s.sweep.db").stat().st_size > 0 and [file.name for file in tmp_path.iterdir()] == [name]
