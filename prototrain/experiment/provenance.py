"""What a run was made from: the words for it, and the functions that tell one state of it from another.

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
                towers, config (`config_provenance`), code                                  `differences`
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
import re
import sys
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from prototrain.config import Config
from prototrain.config.schema import LOCATION_KEYS
from prototrain.system.code_paths import is_installed
from prototrain.system.late_imports import module_file
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
        "provenance": {name: value for name, value in provenance.items() if name not in ("config", *_ADDED_LATER)},
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


_OF_A_GRAPH = "v3 "  # or of several lookup tables in one
_IN_ANOTHER_WAY = re.compile("(v2 )?[0-9a-f]{8}(, (v2 )?[0-9a-f]{8})*|[0-9a-f]{12}")  # as earlier versions wrote it
_OF_A_LAMBDA = re.compile(r"4w\S{18}\.\.\. \([0-9a-f]{8}\)")  # as earlier versions wrote it, with where it lies in it
_OF_A_TEXT = re.compile("(text )?[0-9a-f]{12}")  # of a file or a package, as earlier versions wrote it


_ONCE_MORE = "self_unconditional_dependency_names/"  # how earlier versions named an optimizer of a Keras model again

STEPS_PER_EPOCH = "steps per epoch"
"""What a provenance calls the length of an epoch, be it from the config or from an argument of `train`; None if neither
says it."""

OF_TRAINER = "the trainer's"
"""What a provenance calls what a trainer in Python was made with, and the values that its code names."""

ORDER = "the order of the variables that are trained"
_OF_A_SET = "if the model goes through a set, sort it"
OF_CALLBACKS = "settings of callbacks"
"""What a provenance calls what the callbacks that may change what is trained were made with."""
_EARLIER_OF_CALLBACKS = "callbacks"  # which had less of them
# Of a callback: its code, if it is the user's own, and what its state is called.
CODE = "its code"
STATE = "its state"
_ONLY_LOOKS_ON = "changes_training = False in its class says that it changes nothing that is trained"

# Which checkpoints of earlier versions do not say.
_ADDED_LATER = (
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
# What is seen in two ways is said once, in the words that are nearer to what was edited.
_SAID_BY = {
    "compiled with optimizer ": ("optimizers optimizer ",),
    "gradient processors ": ("config", "towers"),
    "layers ": ("config",),
    "model graph ": ("model code", "trainer code", "config", "layers", "compiled with"),
    "optimizers ": ("config model.optimizer", "config model.lr_schedule"),
    ORDER: ("model code", "trainer code", "config", "layers", "model graph"),
    "schedule ": ("config model.lr_schedule",),
    f"{OF_TRAINER} ": ("trainer was ",),
    "trainer code ": (f"{OF_TRAINER} ",),
}


def changes_since(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name what differs between the provenance of a checkpoint and that of the run which goes on from it, in words."""
    then, now = {**unrecorded(now), **then}, dict(now)
    imports, callbacks = ([one.pop(key, None) for one in (then, now)] for key in ("imports", OF_CALLBACKS))
    said_of_others = _module_changes(*(one or {} for one in imports))
    if None not in callbacks:
        said_of_others += _callback_changes(*callbacks)
    elif then.get(_EARLIER_OF_CALLBACKS) and callbacks[1]:
        said_of_others += _callback_changes_since_earlier(then[_EARLIER_OF_CALLBACKS], callbacks[1])
    then.pop(_EARLIER_OF_CALLBACKS, None)
    known = {key: value for key, value in now.items() if key in then or key not in _ADDED_LATER}
    length, now_length = then.get(STEPS_PER_EPOCH), known.get(STEPS_PER_EPOCH)
    is_same = length is not None and length == now_length  # whoever has said it, a config or a call of `train`
    found = differences(*(_comparable(_without_length(one, config_too=is_same)) for one in (then, known)))
    found = [f"{ORDER} is another one ({_OF_A_SET})" if line.startswith(ORDER) else line for line in found]
    said = [line.removeprefix("optimizers ") for line in found if not _is_said(line, found)]
    return said + said_of_others


def _module_changes(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What differs between modules; those that are not imported yet, as by a step, are looked for."""
    here = {name: now[name] if name in now else source_digest(module_file(name)) for name in then}
    changed = [name for name in then if here[name] not in (then[name], None)]
    return [
        f"the module {name} is not what it was" for name in changed if not _cannot_be_compared(then[name], here[name])
    ]


def _callback_changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between callbacks. Whether one with a state is new or gone, the state says."""
    changed: dict[str, list[str]] = {}
    for name in [*then, *(name for name in now if name not in then)]:
        if name in then and name in now:
            found = [f"the callback {name}: {line}" for line in differences(then[name], now[name])]
        else:
            is_said = STATE in {**then, **now}[name]
            found = [] if is_said else [f"the callback {name} is {'new' if name in now else 'gone'}"]
        if found and CODE in {**then, **now}[name]:
            found[-1] += f" ({_ONLY_LOOKS_ON})"
        changed[name] = found
    return [line for lines in changed.values() for line in lines]


def _callback_changes_since_earlier(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The same for a checkpoint of an earlier version, as far as that has recorded it in the same way."""
    both = {name: [key for key in then[name] if key in now[name] and key != CODE] for name in then if name in now}
    before, after = ({name: {key: of[name][key] for key in keys} for name, keys in both.items()} for of in (then, now))
    return _callback_changes(before, after)


def unrecorded(now: Mapping[str, Any]) -> dict[str, str]:
    """What earlier versions did not record, which did not see that bits depend on it, of a provenance."""
    return {key: "not recorded" for key in ("processor", "GPUs") if key in now}


def _without_length(provenance: Mapping[str, Any], *, config_too: bool) -> dict[str, Any]:
    """A provenance without the length of an epoch, which alone is no reason; that of the config counts unless it is
    the same."""
    found = {name: value for name, value in provenance.items() if name != STEPS_PER_EPOCH}
    if config_too and isinstance(found.get("config"), Mapping):
        found["config"] = {key: value for key, value in found["config"].items() if key != "trainer.steps_per_epoch"}
    return found


def _is_said(line: str, found: list[str]) -> bool:
    others = next((others for start, others in _SAID_BY.items() if line.startswith(start)), None)
    return others is not None and any(other.startswith(others) for other in found)


def _comparable(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """A provenance without what says nothing of the training: names of optimizers, which Keras counts up by process,
    and the rate of one that was given with the config, which a schedule may change and "optimizers" has."""
    found = dict(provenance)
    for key in ("optimizers", "code of"):
        if isinstance(found.get(key), Mapping):
            found[key] = {name: each for name, each in found[key].items() if not name.startswith(_ONCE_MORE)}
    config = dict(found.get("config") or {})
    method = config.get("model.optimizer.method")
    if isinstance(method, Mapping) and isinstance(method.get("config"), Mapping):
        kept = {key: value for key, value in method["config"].items() if key not in ("name", "learning_rate")}
        found["config"] = {**config, "model.optimizer.method": {**method, "config": kept}}
    compiled = found.get("compiled with")
    if isinstance(compiled, Mapping) and isinstance(compiled.get("optimizer"), Mapping):
        kept = {key: value for key, value in compiled["optimizer"].items() if key != "name"}
        found["compiled with"] = {**compiled, "optimizer": kept}
    return found


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name what differs between two provenances, in words."""
    found = []
    for key in dict.fromkeys([*then, *now]):
        mine, theirs = now.get(key, "not set"), then.get(key, "not set")
        if isinstance(mine, dict) and isinstance(theirs, dict):
            kinds = [side["class"] for side in (theirs, mine) if isinstance(side.get("class"), str)]
            if len(set(kinds)) == 2:  # what one class is made with says nothing of another
                theirs, mine = {"class": kinds[0]}, {"class": kinds[1]}
            found += [f"{key} {line}" for line in differences(theirs, mine)]
        elif mine != theirs and all(str(value).startswith(OF_CODE) for value in (theirs, mine)):
            found.append(f"{key} is another one")
        elif mine != theirs and not _cannot_be_compared(theirs, mine):
            found.append(f"{key} was {_shown(theirs)} and is {_shown(mine)}")
    return found


def _cannot_be_compared(then: Any, now: Any) -> bool:
    if str(now).startswith(_OF_A_GRAPH):
        return _IN_ANOTHER_WAY.fullmatch(str(then)) is not None
    if _OF_A_LAMBDA.fullmatch(str(then)):
        return re.fullmatch("[0-9a-f]{12}", str(now)) is not None
    return str(now).startswith(OF_CODE) and _OF_A_TEXT.fullmatch(str(then)) is not None


def _shown(value: Any) -> Any:
    """A value for a message: what Keras can make anew, such as a learning-rate schedule, as it would be written."""
    if not (isinstance(value, dict) and {"class_name", "config"} <= value.keys() and isinstance(value["config"], dict)):
        return value
    given = {name: item for name, item in value["config"].items() if item is not None and name != "name"}
    return f"{value['class_name']}({', '.join(f'{name}={_shown(item)}' for name, item in given.items())})"
