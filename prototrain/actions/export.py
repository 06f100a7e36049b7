"""Write the model as a SavedModel or one file that needs no prototrain, and make sure that it gives the same."""

from __future__ import annotations

import os
import re
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from prototrain.actions.compact import write_compact
from prototrain.actions.keras_file import export_keras
from prototrain.actions.restore import add_checkpoint, restore
from prototrain.actions.saved_model import ServedModel, compare
from prototrain.errors import ConfigError, ExperimentError
from prototrain.model import ModelProtocol
from prototrain.system.files import sync
from prototrain.system.tables import plain_table
from prototrain.system.terminal import say

_LEFT = re.compile(r"\.tmp-\d+-(\d+)")
_OF_SAVED_MODEL = ("assets", "assets.extra", "fingerprint.pb", "saved_model.pb", "variables")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what the action takes."""
    add_checkpoint(parser)
    parser.add_argument(
        "--format",
        choices=("saved_model", "compact", "keras"),
        default="saved_model",
        help="a SavedModel with the config's inputs and outputs; compact: the same as one file, an optimized graph "
        "with the weights in it; or a .keras file of the network, if that is one Keras model; default: %(default)s",
    )


def run(model: ModelProtocol, args: Namespace) -> None:
    """Write ``exported/<step>/`` in the experiment's directory, or ``exported/<step>.pb``, or ``.keras``.

    Its signature ``serving_default`` takes ``actions.export.inputs`` and gives ``actions.export.outputs``, for any
    number of examples. Before it is put in its place, a fresh Python process that cannot import prototrain loads it and
    runs it on real data, and what it gives is compared with the model.

    Args:
        model: has been trained.
        args: `checkpoint`, and `format`, "saved_model", "compact" or "keras".

    Raises:
        CheckpointError: there is no checkpoint that fits.
        ConfigError: the config does not say what to export.
        ModelError: the model has no such inputs or outputs, or what is exported would not be the same as the model.
        ExperimentError: the export is there already, or cannot be written.
    """
    if args.format == "keras":
        return export_keras(restore(model, args.checkpoint))
    inputs, outputs = (_names(model, f"actions.export.{part}") for part in ("inputs", "outputs"))
    restored = restore(model, args.checkpoint)
    compact = args.format == "compact"
    final = restored.experiment.directory / "exported" / f"{restored.checkpoint.step}{'.pb' if compact else ''}"
    if final.exists():
        raise ExperimentError(f"{final} is there already; delete it to export this step again")
    served = ServedModel(restored.built, inputs, outputs)
    outcome = (write_compact if compact else write_export)(served, final)
    say(plain_table({**restored.describe(), **served.describe(), "compared": outcome}), end="\n\n")
    say(f"exported to {restored.experiment.keep(final)}")


def write_export(served: ServedModel, final: Path, extra: Mapping[str, Path] = MappingProxyType({})) -> str:
    """Write a SavedModel, whole and compared with the model in a fresh process, or not at all.

    Args:
        served: what to write.
        final: where.
        extra: files that go along, by their places in there.

    Returns:
        what the comparison found, in words.

    Raises:
        ModelError: what is exported would not be the same as the model.
        ExperimentError: it cannot be written.
    """
    temporary = final.with_name(f".tmp-{final.name}-{os.getpid()}")
    try:
        sweep(final.parent)
        temporary.mkdir(parents=True)
        served.save(temporary)
        outcome = compare(served, temporary)
        for name, path in extra.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, temporary / name)
        _sync(temporary)
        temporary.rename(final)
        sync(final.parent)
    except OSError as error:
        raise ExperimentError(f"cannot write {final}: {error.strerror}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return outcome


def sweep(directory: Path) -> None:
    """Delete what exports that were killed have left in a directory: nothing that another one is writing just now."""
    for path in directory.glob(".tmp-*"):
        left = _LEFT.fullmatch(path.name)
        if left is None or path.is_symlink() or not path.is_dir() or _is_alive(int(left[1])):
            continue
        if all(inside.name in _OF_SAVED_MODEL for inside in path.iterdir()):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return process != os.getpid()


def _names(model: ModelProtocol, key: str) -> list[str]:
    found: list[str] | None = model.config.get(key)
    if not found:
        raise ConfigError(f'{key} is not set; give names of the model\'s mapping, such as {key}=["logits"]')
    return found


def _sync(directory: Path) -> None:
    for path in [*directory.rglob("*"), directory]:
        sync(path)
