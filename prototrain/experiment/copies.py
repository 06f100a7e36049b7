"""Copies of a run's sources, which are made when it starts and imported when it is repeated."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from prototrain.system.files import write_atomic


class ModuleCopy(NamedTuple):
    """A module, and the copy that a run has kept of it.

    Attributes:
        original: the path of the module's file or package directory, which may no longer exist.
        copy: the path of the copy.
    """

    original: Path
    copy: Path


def copy_source(source: Path, target: Path) -> None:
    """Copy a Python file, or the Python files in a package's directory. Each copy is written atomically."""
    files = [source] if source.is_file() else sorted(source.rglob("*.py"))
    for file in files:
        copy = target / source.name / file.relative_to(source) if source.is_dir() else target / file.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(copy, file.read_bytes())


@contextmanager
def imported_from_copies(modules: Mapping[str, ModuleCopy]) -> Iterator[None]:
    """Import modules and their submodules from copies inside a block. They are removed from `sys.modules` afterwards.

    `__file__` is the path of the original, so that a module finds the data files next to it. `__source__` is the path
    of the copy.

    Args:
        modules: the copies by module name.
    """
    copies: Any = SimpleNamespace(find_spec=lambda name, path=None, target=None: _copy_of(name, modules))
    parents: Any = SimpleNamespace(find_spec=lambda name, path=None, target=None: _parent(name, modules))
    _forget(modules)
    sys.meta_path.insert(0, copies)
    sys.meta_path.append(parents)
    try:
        yield
    finally:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder not in (copies, parents)]
        _forget(modules)


def _forget(modules: Mapping[str, ModuleCopy]) -> None:
    for name in list(sys.modules):
        if any(f"{name}.".startswith(f"{root}.") for root in modules):
            del sys.modules[name]


def _copy_of(name: str, modules: Mapping[str, ModuleCopy]) -> ModuleSpec | None:
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


def _parent(name: str, modules: Mapping[str, ModuleCopy]) -> ModuleSpec | None:
    """Find a parent package of a copy that no longer exists, or a copied package without an __init__.py."""
    is_parent = any(f"{root}.".startswith(f"{name}.") for root in modules)
    return ModuleSpec(name, None, is_package=True) if is_parent else None


def _spec(name: str, original: Path, copy: Path) -> ModuleSpec | None:
    inside = [str(original.parent)] if copy.name == "__init__.py" else None
    loader = _Loader(name, original, copy)
    return spec_from_file_location(name, original, loader=loader, submodule_search_locations=inside)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, original: Path, copy: Path) -> None:
        super().__init__(name, str(original))
        self._copy = copy

    def exec_module(self, module: ModuleType) -> None:
        module.__source__ = str(self._copy)  # type: ignore[attr-defined]
        super().exec_module(module)

    def get_data(self, path: Any) -> bytes:
        return self._copy.read_bytes() if path == self.path else super().get_data(path)

    def path_stats(self, path: Any) -> Any:
        raise OSError("there is no bytecode of a copy, neither to be read nor to be written")

    def source_to_code(self, data: Any, path: Any, **options: Any) -> CodeType:  # type: ignore[override]
        # Tracebacks and `inspect` show the source that runs.
        code: CodeType = super().source_to_code(data, str(self._copy), **options)
        return code
