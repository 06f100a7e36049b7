"""Imports from the copies of a run's sources, for repeating the run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any


@contextmanager
def imported_from_copies(modules: Mapping[str, tuple[Path, Path]]) -> Iterator[None]:
    """Import modules and their submodules from copies inside a block. They are removed from `sys.modules` afterwards.

    `__file__` is the path of the original, so that a module finds the data files next to it. `modules` has, by name,
    the path of the file or package directory, which may no longer exist, and of its copy.
    """
    copies: Any = SimpleNamespace(find_spec=lambda name, path=None, target=None: _copy_of(name, modules))
    parents: Any = SimpleNamespace(find_spec=lambda name, path=None, target=None: _parent(name, modules))
    _forget(modules)
    writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # the copies get no bytecode files
    sys.meta_path.insert(0, copies)
    sys.meta_path.append(parents)
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes_none
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder not in (copies, parents)]
        _forget(modules)


def _forget(modules: Iterable[str]) -> None:
    for name in list(sys.modules):
        if any(f"{name}.".startswith(f"{root}.") for root in modules):
            del sys.modules[name]


def _copy_of(name: str, modules: Mapping[str, tuple[Path, Path]]) -> ModuleSpec | None:
    """Find the copy of a module, before other finders are asked."""
    for root, (original, copy) in modules.items():
        if not f"{name}.".startswith(f"{root}."):
            continue
        below = name[len(root) + 1 :].replace(".", "/")
        if not below and copy.is_file():
            return _spec(name, original, copy)
        for file in (f"{below}.py", f"{below}/__init__.py") if below else ("__init__.py",):
            if (copy / file).is_file():
                return _spec(name, original / file, copy / file)
    return None


def _parent(name: str, modules: Iterable[str]) -> ModuleSpec | None:
    """Find a parent package of a copy that no longer exists, or a copied package without an __init__.py."""
    is_parent = any(f"{root}.".startswith(f"{name}.") for root in modules)
    return ModuleSpec(name, None, is_package=True) if is_parent else None


def _spec(name: str, original: Path, copy: Path) -> ModuleSpec | None:
    inside = [str(original.parent)] if copy.name == "__init__.py" else None
    spec = spec_from_file_location(name, copy, submodule_search_locations=inside)
    if spec is not None:
        spec.origin = str(original)  # the module's `__file__`; its loader reads the copy
    return spec
