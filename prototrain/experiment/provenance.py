"""What decides whether a continued run is bit for bit the run it continues."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prototrain.config import Config
from prototrain.system.code_paths import is_installed

# Keys that change neither data nor updates: how long, where, how often it is looked at.
_HARMLESS = {
    "model.num_steps",
    "model.weights_load_path",
    "trainer.experiment_base_dir",
    "trainer.experiment_name",
    "trainer.validation_step_interval",
    "trainer.validation_batches",
    "trainer.summary_save_interval",
    "trainer.print_interval",
    "trainer.checkpoint_save_interval",
    "trainer.max_checkpoints_to_keep",
}


def config_provenance(config: Config) -> dict[str, Any]:
    """The config's values that training depends on, as JSON can hold them."""
    values = json.loads(config.to_json())
    return {key: value for key, value in values.items() if key not in _HARMLESS and not key.startswith("actions.")}


def import_digests(besides: Iterable[Path]) -> dict[str, str]:
    """Short hashes of the imported modules that nobody has installed, by name: files of the user's own.

    Args:
        besides: files and packages that are left out, since copies of them are kept.
    """
    kept = list(besides)
    found = {}
    for name, module in list(sys.modules.items()):
        # Not by getattr, at which modules that are loaded late would load themselves.
        file = str(getattr(module, "__dict__", {}).get("__file__"))
        # Of no interest either: the script, of which there is a copy, and what AutoGraph makes of functions.
        if name.startswith("__") or is_installed(file) or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        digest = None if any(path.is_relative_to(other) for other in kept) else source_digest(path)
        if digest is not None:
            found[name] = digest
    return found


def source_digest(source: Path | None) -> str | None:
    """A short hash of the Python files that a model was written in; None if they are not known."""
    if source is None or not source.exists():
        return None
    files = [source] if source.is_file() else sorted(source.rglob("*.py"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
