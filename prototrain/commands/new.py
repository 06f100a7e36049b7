"""`prototrain new`: write a model to start from."""

from __future__ import annotations

import keyword
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from prototrain.errors import ModelError
from prototrain.system.files import appearing

_TEMPLATE = "prototrain.template"


def add(commands: Any) -> None:
    """Declare the command's arguments."""
    new = commands.add_parser(
        "new",
        help="write a model package to start from",
        description="Write a small model package into the current directory. It trains as it is.",
    )
    new.add_argument("name", metavar="MODEL", help="the new package, such as mymodel or models.mine")
    new.set_defaults(command=lambda options: _new(options.name))


def _new(name: str) -> None:
    target = _free_place(name)
    with appearing(target) as package:
        package.mkdir()
        for source in files("prototrain").joinpath("template").iterdir():
            if source.name.endswith(".py"):
                text = source.read_text(encoding="utf-8").replace(_TEMPLATE, name)
                (package / source.name).write_text(text.replace('"template"', f'"{target.name}"'), encoding="utf-8")
    for path in sorted(target.iterdir()):
        print(path)
    print(f"\ntrain it  prototrain run {name}")


def _free_place(name: str) -> Path:
    """Return the path of the new package."""
    parts = name.split(".")
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        raise ModelError(f"{name!r} is not a module name; take letters, digits and underscores, such as mymodel")
    target = Path(*parts)
    if target.exists() or target.with_suffix(".py").exists():
        raise ModelError(f"{target} is there already; choose another name or delete it first")
    found = None if Path(parts[0]).exists() else find_spec(parts[0])
    if found is not None:
        raise ModelError(f"there is a module {parts[0]} already; choose another name")
    return target
