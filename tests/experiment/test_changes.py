"""What counts as a change of what a run was made from."""

from __future__ import annotations

from pathlib import Path

import pytest

from prototrain.experiment.changes import changes_since
from prototrain.experiment.provenance import source_digest


def test_a_digest_of_an_earlier_form_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("x = 1\n")
    now = {"model code": source_digest(file)}
    assert changes_since({"model code": "0123456789ab"}, now) == []
    assert changes_since({"model code": "text 0123456789ab"}, now) == []
    assert changes_since({"model code": "code 0123456789ab"}, now) == ["model code is another one"]
    assert changes_since({"imports": {"json": "text 0123456789ab"}}, {"imports": {"json": now["model code"]}}) == []


def test_what_earlier_versions_did_not_record_is_not_claimed() -> None:
    now = {"processor": "x86_64", "GPUs": ["A100"], "towers": 1}
    assert changes_since({"towers": 1}, now) == [
        "processor was not recorded and is x86_64",
        "GPUs was not recorded and is ['A100']",
    ]
    assert changes_since({"towers": 1, "processor": "x86_64"}, {"towers": 1, "processor": "x86_64"}) == []


def test_modules_are_compared_as_far_as_both_have_them() -> None:
    then = {"imports": {"helper": "code 1", "gone": "code 2", "same": "code 3"}}
    now = {"imports": {"helper": "code 4", "new": "code 5", "same": "code 3"}}
    assert changes_since(then, now) == ["the module helper is not what it was"]
    assert changes_since({}, now) == []


def test_a_module_that_is_not_imported_yet_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "found_late"
    package.mkdir()
    for file, text in {"__init__.py": "raise RuntimeError", "part.py": "X = 1"}.items():
        (package / file).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    then = {"imports": {f"found_late{name}": source_digest(package / file) for name, file in LATE.items()}}
    assert changes_since(then, {"imports": {}}) == []
    (package / "part.py").write_text("X = 2")
    assert changes_since(then, {"imports": {}}) == ["the module found_late.part is not what it was"]


LATE = {"": "__init__.py", ".part": "part.py"}


def test_a_graph_is_not_compared_with_what_earlier_versions_saw_of_it() -> None:
    now = {"model graph": "v3 01234567", "schedule": "v3 01234567", "tables": "v3 0123456789ab"}
    then = {"model graph": "89abcdef", "schedule": "89abcdef, 01234567", "tables": "ba9876543210"}
    assert changes_since(then, now) == []
    assert changes_since({**then, "schedule": "v2 89abcdef, v2 01234567"}, now) == []
    assert changes_since({**now, "model graph": "v3 89abcdef"}, now) == [
        "model graph was v3 89abcdef and is v3 01234567"
    ]
