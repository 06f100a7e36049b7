"""The package: exports, import costs, and allowed imports between modules."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

import prototrain
import prototrain.callbacks
from tests.conftest import COMPATIBILITY, ROOT

LAYERS = [
    ["errors"],
    ["tf_private"],
    ["system"],
    ["config", "towers"],
    ["experiment", "gradient_processors", "schedules"],
    ["verify"],
    ["checkpoint", "optimizers", "readers"],
    ["data"],
    ["predictor", "step"],
    ["model"],
    ["callbacks", "distributed"],
    ["recorder"],
    ["trainers"],
    ["keras"],
    ["launch", "runs"],
    ["sweeps"],
    ["actions"],
    ["estimator"],
    ["commands", "template", "testing"],
    ["cli"],
    ["__main__"],
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
PACKAGE = ROOT / "prototrain"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def imports(tree: ast.AST) -> Iterator[str]:
    """The modules of prototrain that are imported at run time, by their first name below it."""
    if isinstance(tree, ast.If) and isinstance(tree.test, ast.Name) and tree.test.id == "TYPE_CHECKING":
        return
    if isinstance(tree, ast.ImportFrom) and tree.module is not None:
        names = [tree.module] if "." in tree.module else [f"{tree.module}.{alias.name}" for alias in tree.names]
        yield from (name.split(".")[1] for name in names if name.startswith("prototrain."))
    elif isinstance(tree, ast.Import):
        yield from (alias.name.split(".")[1] for alias in tree.names if alias.name.startswith("prototrain."))
    for child in ast.iter_child_nodes(tree):
        yield from imports(child)


def test_imports_point_down() -> None:
    wrong = []
    for path in MODULES:
        own = path.relative_to(PACKAGE).with_suffix("").parts[0]
        assert own in RANK, f"{own} has no layer: put it into LAYERS of this test"
        others = set(imports(ast.parse(path.read_text(encoding="utf-8")))) - {own}
        wrong += [(str(path), name) for name in others if RANK.get(name, -1) >= RANK[own]]
    assert wrong == []


@pytest.mark.parametrize("module", [prototrain, prototrain.callbacks], ids=lambda module: module.__name__)
def test_exported_names_are_sorted_and_exist(module: ModuleType) -> None:
    names = module.__all__
    assert names == sorted(names) and len(names) == len(set(names))
    assert all(getattr(module, name) is not None for name in names)


def test_every_exported_name_has_a_home() -> None:
    assert sorted(prototrain.callbacks._HOMES) == prototrain.callbacks.__all__
    text = (PACKAGE / "callbacks" / "__init__.py").read_text(encoding="utf-8")
    for_type_checkers = re.findall(r"from prototrain\.(\S+) import \*", text)
    assert set(for_type_checkers) == set(prototrain.callbacks._HOMES.values())
    assert sorted(prototrain._HOMES) == [name for name in prototrain.__all__ if name != "__version__"]
    assert set(dir(prototrain)) == set(prototrain.__all__)
    for name, home in prototrain._HOMES.items():
        assert getattr(prototrain, name) is getattr(importlib.import_module(f"prototrain.{home}"), name)


def test_compatibility_tests_exist() -> None:
    for name in COMPATIBILITY:
        file, *path = name.partition("[")[0].split("::")
        assert (ROOT / file).exists(), name
        assert all(f"{part}" in (ROOT / file).read_text(encoding="utf-8") for part in path), name


def test_every_module_can_be_imported() -> None:
    for module in pkgutil.walk_packages(prototrain.__path__, "prototrain."):
        importlib.import_module(module.name)


def test_modules_without_tensorflow() -> None:
    faces = ["config", "experiment", "runs", "commands", "system", "errors", "cli"]
    names = [*faces, *sorted(f"experiment.{path.stem}" for path in (PACKAGE / "experiment").glob("[!_]*.py"))]
    lines = [
        f"import prototrain.{name}\nassert not {{'tensorflow', 'keras'}} & set(sys.modules), {name!r}" for name in names
    ]
    python("\n".join(["import sys", *lines]))


ANSWERS = """
import sys
from prototrain.cli import main

for arguments in ["--version"], ["--help"], ["run", "--help"], ["action", "--help"], ["--wrong"], ["run"]:
    try:
        main(arguments)
    except SystemExit as end:
        assert (end.code or 0) == (0 if arguments[-1] in ("--help", "--version") else 2), arguments
    else:
        raise AssertionError(arguments)
    assert not {"tensorflow", "keras", "numpy", "yaml", "boto3"} & set(sys.modules), arguments
assert main(["run", "no_such_model"]) == 1 and "tensorflow" not in sys.modules
"""


def python(program: str) -> tuple[str, str]:
    """What a program prints, and its errors."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_base_trainer_loads_few_modules() -> None:
    program = "import sys, prototrain.trainers.base\nprint(sum(name.startswith('prototrain') for name in sys.modules))"
    assert int(python(program)[0]) <= 30


def test_command_line_without_tensorflow() -> None:
    said, errors = python(ANSWERS)
    assert said.startswith(f"prototrain {prototrain.__version__}\n") and said.count("usage: ") == 3
    assert errors.count("--help)\n") == 2 and "there is no model no_such_model: no such module in" in errors
