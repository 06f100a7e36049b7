"""Facts about the sources, versions and environment of a run, and the differences between two records of them."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import platform
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from prototrain.system.files import python_files

Facts = dict[str, Any]

_LONGEST = 60  # characters of a displayed value


def source_of(thing: object) -> Path | None:
    """Return the package directory or file whose code runs, for a module or the class of an object."""
    module = thing if isinstance(thing, ModuleType) else inspect.getmodule(type(thing))
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    return _package_or_file(module, getattr(loader, "path", None) or getattr(module, "__file__", None))


def home_of(module: ModuleType | None) -> Path | None:
    """Return the package directory or file of a module; the original one if the copy of a run is imported."""
    return _package_or_file(module, getattr(module, "__file__", None))


def _package_or_file(module: ModuleType | None, file: str | None) -> Path | None:
    if file is None:  # a package without an __init__.py has only its directory
        return next(map(Path, getattr(module, "__path__", ())), None)
    return Path(file).parent if Path(file).name == "__init__.py" else Path(file)


def sources_of(trainer: Any) -> list[Path]:
    """Return the files and packages that a run copies: of the model, of a trainer of one's own, and the script."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    installed = (str(Path(__file__).parents[1]), sysconfig.get_paths()["purelib"])
    script = Path(main) if main and main.endswith(".py") and not main.startswith(installed) else None
    own = None if type(trainer).__module__.startswith("prototrain.") else source_of(trainer)
    found = [path.resolve() for path in (own, script) if path is not None and path.is_file()]
    return list(dict.fromkeys([*filter(None, [trainer.model_source]), *found]))


def file_digests(sources: Iterable[Path | None]) -> dict[str, str]:
    """Return the first 16 digits of the SHA-256 of the Python files in some files and packages, by name.

    None and missing files are skipped.
    """
    found: dict[str, str] = {}
    for source in filter(None, sources):
        for file in python_files(source):
            name = file.name if source.is_file() else file.relative_to(source).as_posix()
            with suppress(OSError):  # for example a deleted script
                key = f"{source.name}/{name}" if name in found else name
                found[key] = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    return found


def changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe the differences between the facts of a checkpoint and of the run that resumes from it."""
    config = [_moved(key, *pair) for key, pair in _pairs(then.get("config"), now.get("config")).items()]
    names = _pairs(then.get("sources"), now.get("sources"))
    files = [
        f"{name}{' added' if was is None else ' gone' if now_is is None else ''}"
        for name, (was, now_is) in names.items()
    ]
    before, after = ([*(one.get("callbacks") or ())] for one in (then, now))
    callbacks = [f"callback {name} added" for name in after if name not in before]
    callbacks += [f"callback {name} gone" for name in before if name not in after]
    rest = [key for key in dict.fromkeys([*then, *now]) if key not in ("config", "sources", "callbacks")]
    others = [line for key in rest for line in differences({key: then.get(key)}, {key: now.get(key)})]
    others = [line.removeprefix("versions ") for line in others]
    if any(line.startswith(("model.optimizer", "model.lr_schedule")) for line in config):
        others = [line for line in others if not line.startswith(("optimizers ", "compiled with optimizer"))]
    return config + files + callbacks + [line.removeprefix("optimizers ") for line in others]


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe the differences between two records, with both values."""
    found = []
    for key, (was, value) in _pairs(then, now).items():
        if isinstance(was, Mapping) and isinstance(value, Mapping):
            kinds = [side["class"] for side in (was, value) if isinstance(side.get("class"), str)]
            if len(set(kinds)) == 2:  # the arguments of different classes cannot be compared
                found.append(_moved(key, *kinds))
                continue
            found += [f"{key} {line}" for line in differences(was, value)]
        else:
            found.append(_moved(key, was, value))
    return found


def _pairs(then: Any, now: Any) -> dict[str, tuple[Any, Any]]:
    """Return the values of two mappings that differ, by key; None stands for a missing value."""
    then, now = then or {}, now or {}
    both = {key: (then.get(key), now.get(key)) for key in dict.fromkeys([*then, *now])}
    return {key: pair for key, pair in both.items() if pair[0] != pair[1]}


def _moved(key: str, was: Any, value: Any) -> str:
    shown = [_shown(was), _shown(value)]
    return key if shown[0] == shown[1] else f"{key} {shown[0]} -> {shown[1]}"


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def describe_environment() -> dict[str, Any]:
    """Describe this process as JSON data."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "directory": os.getcwd(),
        "host": platform.node(),
        "platform": platform.platform(),
        "git_commit": _git_commit(),
        "versions": versions(),
    }


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that training depends on, by name."""
    found = {"python": platform.python_version()}
    for package in ("prototrain", "tensorflow", "keras", "numpy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def _git_commit() -> str | None:
    """Return the commit of the working directory, with "+changes" if tracked files differ; None outside of git."""
    git = functools.partial(subprocess.run, capture_output=True, text=True, check=True, timeout=10)
    try:
        commit = git(["git", "rev-parse", "HEAD"]).stdout.strip()
        return commit + ("+changes" if git(["git", "status", "--porcelain", "--untracked-files=no"]).stdout else "")
    except (OSError, subprocess.SubprocessError):
        return None
