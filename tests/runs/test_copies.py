from __future__ import annotations

import importlib
import inspect
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prototrain.experiment import home_of, source_of
from prototrain.runs.copies import imported_from_copies


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a package and a module, and copies of earlier versions of both."""
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "outer_of_snapshot" / "package"
    (package / "sub").mkdir(parents=True)
    (package / "__init__.py").write_text("from .part import value as value\n")
    (package / "part.py").write_text("import sys\nvalue = 'then'\ndef where():\n    return __file__\n")
    (package / "sub" / "__init__.py").write_text("value = 'sub then'\n")
    (tmp_path / "single_of_snapshot.py").write_text("value = 'single then'\n")
    copies = tmp_path / "copies"
    shutil.copytree(package, copies / "package")
    shutil.copy(tmp_path / "single_of_snapshot.py", copies)
    for file in [*package.rglob("*.py"), tmp_path / "single_of_snapshot.py"]:
        file.write_text(file.read_text().replace("then", "now"))
    yield tmp_path
    for name in [name for name in sys.modules if "_of_snapshot" in name]:
        del sys.modules[name]


def test_import_and_forget_copies(place: Path) -> None:
    package, single = place / "outer_of_snapshot/package", place / "single_of_snapshot.py"
    name = "outer_of_snapshot.package"
    assert importlib.import_module(name).value == "now"
    with imported_from_copies(
        {name: (package, place / "copies/package"), "single_of_snapshot": (single, place / "copies" / single.name)}
    ):
        found = importlib.import_module(name)
        assert found.value == "then" and importlib.import_module(f"{name}.sub").value == "sub then"
        assert importlib.import_module("single_of_snapshot").value == "single then"
        part = importlib.import_module(f"{name}.part")
        assert part.where() == str(package / "part.py")
        assert "'then'" in inspect.getsource(part) or "def where" in inspect.getsource(part.where)
        assert inspect.getsourcefile(part.where) == str(place / "copies/package/part.py")
        assert source_of(found) == place / "copies/package" and home_of(found) == package
        assert source_of(part) == place / "copies/package/part.py" and home_of(part) == package / "part.py"
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"{name}.nothing")
    assert importlib.import_module(name).value == "now"
    assert not list((place / "copies").rglob("*.pyc"))


def test_missing_neighbours_of_a_copy(place: Path) -> None:
    package = place / "outer_of_snapshot/package"
    shutil.rmtree(place / "outer_of_snapshot")
    with imported_from_copies({"outer_of_snapshot.package": (package, place / "copies/package")}):
        assert importlib.import_module("outer_of_snapshot.package.part").value == "then"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("outer_of_snapshot.package")
