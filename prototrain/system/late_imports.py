"""Modules of the user's own that functions import when they are called: until then nobody has imported them."""

from __future__ import annotations

import dis
import hashlib
from collections.abc import Iterable
from importlib.machinery import PathFinder
from importlib.util import resolve_name
from pathlib import Path
from types import CodeType, FunctionType

from prototrain.system.code_paths import is_installed
from prototrain.system.source_code import OF_CODE, code_in


def late_imports(functions: Iterable[FunctionType]) -> dict[str, str]:
    """Short hashes of the files of the modules that functions import by themselves, by name."""
    found: dict[str, str] = {}
    for function in functions:
        package = str(function.__globals__.get("__package__") or "")
        for name in _imported(function.__code__, package):
            digest = _digest(module_file(name))
            if digest is not None:
                found[name] = digest
    return found


def module_file(module: str) -> Path | None:
    """The file that a module would be imported from, the ``__init__.py`` of a package; None if there is none."""
    names, path, found = module.split("."), None, None
    for count in range(len(names)):
        found = PathFinder.find_spec(".".join(names[: count + 1]), path)
        if found is None:
            return None
        path = found.submodule_search_locations
    return Path(found.origin) if found is not None and found.has_location and found.origin is not None else None


def _imported(code: CodeType, package: str) -> list[str]:
    found = []
    steps = list(dis.get_instructions(code))
    for level, _, op in zip(steps, steps[1:], steps[2:], strict=False):
        if op.opname == "IMPORT_NAME" and isinstance(level.argval, int):
            name = "." * level.argval + str(op.argval)
            if package or not level.argval:
                found.append(resolve_name(name, package))
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return found + [name for constant in inner for name in _imported(constant, package)]


def _digest(file: Path | None) -> str | None:
    """Of a package all of its files count."""
    if file is None or file.suffix != ".py" or is_installed(str(file)):
        return None
    files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
    return OF_CODE + hashlib.sha256(b"\0".join(map(code_in, files))).hexdigest()[:12]
