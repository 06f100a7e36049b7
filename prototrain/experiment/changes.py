"""What differs between what a run was made from and what the one that goes on from it is made from, in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from prototrain.experiment.provenance import (
    ADDED_LATER,
    CODE,
    OF_CALLBACKS,
    OF_TRAINER,
    ORDER,
    STATE,
    STEPS_PER_EPOCH,
    source_digest,
)
from prototrain.system.late_imports import module_file
from prototrain.system.source_code import OF_CODE

_OF_A_GRAPH = "v3 "  # or of several lookup tables in one
_IN_ANOTHER_WAY = re.compile("(v2 )?[0-9a-f]{8}(, (v2 )?[0-9a-f]{8})*|[0-9a-f]{12}")  # as earlier versions wrote it
_OF_A_LAMBDA = re.compile(r"4w\S{18}\.\.\. \([0-9a-f]{8}\)")  # as earlier versions wrote it, with where it lies in it
_OF_A_TEXT = re.compile("(text )?[0-9a-f]{12}")  # of a file or a package, as earlier versions wrote it
_ONCE_MORE = "self_unconditional_dependency_names/"  # how earlier versions named an optimizer of a Keras model again
_OF_A_SET = "if the model goes through a set, sort it"
_EARLIER_OF_CALLBACKS = "callbacks"  # which had less of them
_ONLY_LOOKS_ON = "changes_training = False in its class says that it changes nothing that is trained"
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
    known = {key: value for key, value in now.items() if key in then or key not in ADDED_LATER}
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
    before, after = ([name for name in one if name in then and name in now] for one in (then, now))
    moved = [name for name, other in zip(before, after, strict=True) if name != other]
    order = [f"the callbacks {', '.join(moved)} run in another order"] if moved else []
    return [line for lines in changed.values() for line in lines] + order


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
