"""What a run was made from: the words for it, and the functions that find it out.

Each word has one meaning in the whole package:

==============  ==========================================  ==============================  ============================
term            what it means                               where it is kept                who compares it
==============  ==========================================  ==============================  ============================
source          the package or file that a model, a         ``source/``: its .py files      nobody; ``run --from``
                trainer or a script was written in, as it   (`copies.copy_source`)          imports it (`copies`)
                is run (`source_of`)
home            where that package or file lies, or lay if  environment.json: modules       nobody; ``run --from`` looks
                a kept copy is what is run (`home_of`)                                      there first
environment     versions, command line, machine, git        environment.json: versions,     ``compare``; `runs.repeat`,
                commit, devices                             command, host, platform,        but for command, host and
                (`environment.describe_environment`)        directory, git_commit, devices  commit
origin          what a run is repeated from and compared    environment.json: trainer,      `runs.repeat`
                with (`origin_of`), these and those below   model, modules, towers,
                                                            callbacks
provenance      what must not change between a run and its  meta.json of a checkpoint:      a resume, which is else "not
                bit-exact continuation                      provenance; without the config  bit-exact"; actions;
                (`Trainer.provenance`): versions, threads,  environment.json: provenance    `runs.repeat`; all by
                towers, config (`config_provenance`), code                                  `changes.differences`
                (`source_digest`)
import digests  short hashes of the imported modules of     environment.json: imports;      a resume, as far as both
                the user's own that no copy is kept of      meta.json: provenance           have them; `runs.repeat`
                (`import_digests`)
data files      size and hash of each file that the data    environment.json: data.files    `runs.repeat`
                comes from (`data_files.describe_files`)                                    (`data_files.file_changes`)
fingerprint     what must be the same for a saved position  meta.json of a checkpoint:      a resume, which refuses
                in the data to mean the same batches:       parts.data.fingerprint; the     another one unless told to
                elements, seed, the pipeline's stages       stages also environment.json:   go on with changed data;
                                                            data.pipeline                   `runs.repeat`
==============  ==========================================  ==============================  ============================
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from prototrain.config import Config
from prototrain.config.schema import LOCATION_KEYS
from prototrain.system.code_paths import is_installed
from prototrain.system.source_code import OF_CODE, code_in

# Keys that change neither data nor updates: how long, where, how often it is looked at.
_HARMLESS = {
    *LOCATION_KEYS,
    "model.num_steps",
    "model.weights_load_path",
    "trainer.validation_step_interval",
    "trainer.validation_batches",
    "trainer.rehearse_validation",
    "trainer.summary_save_interval",
    "trainer.print_interval",
    "trainer.checkpoint_save_interval",
    "trainer.failures_per_day",
    "trainer.max_checkpoints_to_keep",
    "trainer.cluster_timeout",
    "trainer.stall_timeout",
}


def source_of(thing: object) -> Path | None:
    """The package directory or the file that a module, or an object's class, was written in: the text that is run."""
    module = thing if isinstance(thing, ModuleType) else inspect.getmodule(type(thing))
    return _package_or_file(module, getattr(module, "__source__", None) or getattr(module, "__file__", None))


def home_of(module: ModuleType | None) -> Path | None:
    """Where a module's package or file lies; or lay, if what is run is the copy that a run has kept of it."""
    return _package_or_file(module, getattr(module, "__file__", None))


def _package_or_file(module: ModuleType | None, file: str | None) -> Path | None:
    if file is None:  # a package without an __init__.py has only its directory
        return next(map(Path, getattr(module, "__path__", ())), None)
    return Path(file).parent if Path(file).name == "__init__.py" else Path(file)


def sources_of(trainer: object) -> list[Path]:
    """The files and packages that a run keeps a copy of: where its trainer was written, and the script."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    script = Path(main) if main and main.endswith(".py") else None
    own = None if type(trainer).__module__.startswith("prototrain.") else source_of(trainer)
    found = [path for path in (own, script) if path is not None and path.is_file()]
    return list(dict.fromkeys(path.resolve() for path in found))


def origin_of(trainer: object, callbacks: Iterable[str], provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What a run is repeated from and compared with, as JSON can hold it.

    Args:
        trainer: of the run.
        callbacks: their names.
        provenance: the trainer's.

    Returns:
        "trainer", its class; "modules", where the modules lie that copies are kept of, by name; "callbacks"; and of
        "provenance" what no other file says.
    """
    own = type(trainer).__module__
    home = None if own.startswith("prototrain.") or own == "__main__" else home_of(sys.modules.get(own))
    return {
        "trainer": f"{own}:{type(trainer).__qualname__}",
        "modules": {} if home is None else {own: str(home.resolve())},
        # One of a private class is not of the user's choice.
        "callbacks": [name for name in callbacks if not name.startswith("_")],
        # What follows from the config and the code, which are kept beside it, is left out.
        "provenance": {name: value for name, value in provenance.items() if name not in ("config", *ADDED_LATER)},
    }


def config_provenance(config: Config) -> dict[str, Any]:
    """The config's values that training depends on, as JSON can hold them."""
    values = json.loads(config.to_json())
    return {key: value for key, value in values.items() if key not in _HARMLESS and not key.startswith("actions.")}


def import_digests(besides: Iterable[Path], *, known: Container[str] = ()) -> dict[str, str]:
    """Short hashes of the imported modules that nobody has installed, by name: files of the user's own.

    Args:
        besides: files and packages that are left out, since copies of them are kept.
        known: names of modules that are left out, too.
    """
    kept = list(besides)
    found = {}
    for name, module in sys.modules.copy().items():  # other threads may import meanwhile
        if name in known:
            continue
        # Not by getattr, at which modules that are loaded late would load themselves.
        try:
            file = str(object.__getattribute__(module, "__dict__").get("__file__"))
        except AttributeError:  # something else that stands among the modules
            continue
        # Of no interest either: the script, of which there is a copy, and what AutoGraph makes of functions.
        if name.startswith("__") or is_installed(file) or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        digest = None if any(path.is_relative_to(other) for other in kept) else source_digest(path)
        if digest is not None:
            found[name] = digest
    return found


def source_digest(source: Path | None) -> str | None:
    """A short hash of the code in the Python files of a source, without what says how long a run is or how often it is
    looked at (see `code_in`); None if they are not known.

    A file by itself may be renamed, so that only its code counts; the files of a package import each other by name.
    """
    if source is None or not source.exists():
        return None
    digest = hashlib.sha256()
    for file in [source] if source.is_file() else sorted(source.rglob("*.py")):
        name = "" if file == source else file.name
        digest.update(name.encode() + b"\0" + code_in(file, besides=_HARMLESS) + b"\0")
    return OF_CODE + digest.hexdigest()[:12]


STEPS_PER_EPOCH = "steps per epoch"
"""What a provenance calls the length of an epoch, be it from the config or from an argument of `train`; None if neither
says it."""

OF_TRAINER = "the trainer's"
"""What a provenance calls what a trainer in Python was made with, and the values that its code names."""

ORDER = "the order of the variables that are trained"
OF_CALLBACKS = "settings of callbacks"
"""What a provenance calls what the callbacks that may change what is trained were made with."""
# Of a callback: its code, if it is the user's own, and what its state is called.
CODE = "its code"
STATE = "its state"
ADDED_LATER = (
    "callbacks",
    "flags",
    "gradient processors",
    "imports",
    "layers",
    "model graph",
    "code of",
    "optimizers",
    "schedule",
    "tables",
    OF_TRAINER,
    ORDER,
    STEPS_PER_EPOCH,
)
"""What checkpoints of earlier versions do not say."""
