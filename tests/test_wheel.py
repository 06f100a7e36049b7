from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import prototrain
from tests.conftest import ROOT

SOURCES = ["CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.cfg"]
NAME = f"prototrain-{prototrain.__version__}"
pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the source distribution and with a wheel that is built from it."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in SOURCES:
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "prototrain", source / "prototrain", ignore=shutil.ignore_patterns("__pycache__"))
    (source / "tests").mkdir()
    (source / "tests" / "test_none.py").touch()
    program = f"from setuptools import build_meta; build_meta.build_sdist({str(built)!r})"
    run(sys.executable, "-c", program, cwd=source)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation"]
    run(*pip, "--wheel-dir", built, built / f"{NAME}.tar.gz", cwd=built)
    return built


def modules() -> set[str]:
    package = ROOT / "prototrain"
    found = [*package.rglob("*.py"), package / "py.typed", *(package / "runs" / "page").iterdir()]
    return {str(path.relative_to(ROOT)) for path in found}


def test_source_distribution_contains_the_sources(built: Path) -> None:
    with tarfile.open(built / f"{NAME}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    made = {name for name in names if name == "PKG-INFO" or ".egg-info/" in name}
    assert names - made == modules() | set(SOURCES)


def test_wheel_contains_only_the_library(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"{NAME}.dist-info/METADATA").decode()
        scripts = archive.read(f"{NAME}.dist-info/entry_points.txt").decode()
    assert {name for name in names if ".dist-info/" not in name} == modules()
    assert any(name.endswith("/LICENSE") for name in names)
    assert f"\nVersion: {prototrain.__version__}\n" in metadata and "\nLicense" in metadata
    assert "prototrain = prototrain.cli:main" in scripts


def test_wheel_trains_a_model(built: Path, tmp_path: Path) -> None:
    site, here = tmp_path / "site", tmp_path / "here"
    here.mkdir()
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", site]
    run(*install, next(built.glob("*.whl")), cwd=here)
    where = run(sys.executable, "-c", "import prototrain; print(prototrain.__file__)", cwd=here, PYTHONPATH=str(site))
    assert where.strip() == str(site / "prototrain" / "__init__.py")
    command = [site / "bin" / "prototrain"]
    assert run(*command, "--version", cwd=here, PYTHONPATH=str(site)) == f"prototrain {prototrain.__version__}\n"
    assert "mymodel/datasets.py" in run(*command, "new", "mymodel", cwd=here, PYTHONPATH=str(site))
    out = run(*command, "run", "mymodel", "-s", "model.num_steps=30", cwd=here, PYTHONPATH=str(site))
    assert "saved step 30 to experiments/mymodel/checkpoints/step-0000000030" in out
