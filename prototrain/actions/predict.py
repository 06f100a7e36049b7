"""Predict for a whole dataset or for files, into JSON lines or NumPy's .npz."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from prototrain.actions.evaluate import choose_dataset
from prototrain.actions.prediction_files import SUFFIXES, Predictions
from prototrain.actions.prediction_inputs import INPUT_SUFFIXES, FileBatches
from prototrain.actions.restore import Restored, add_checkpoint, restore
from prototrain.data.digest import NO_BATCHES, digest_behind
from prototrain.data.elements import at_path, batch_size, has_path
from prototrain.errors import ConfigError, DataError, ModelError
from prototrain.model import ModelProtocol
from prototrain.predictor import DatasetPredictor
from prototrain.system.tables import plain_table
from prototrain.system.terminal import say


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what the action takes."""
    add_checkpoint(parser)
    of = parser.add_mutually_exclusive_group()
    of.add_argument("--dataset", metavar="tst|vld|trn", help="which one; default: tst, or vld if there is no tst")
    of.add_argument(
        "--files",
        metavar="FILE",
        nargs="+",
        type=_path(INPUT_SUFFIXES),
        help=f"in place of a dataset: files ({', '.join(INPUT_SUFFIXES)}) of examples, named as in a batch",
    )
    parser.add_argument(
        "--outputs",
        metavar="NAME,...",
        type=_names,
        help="what to write of what build() returns; default: the key actions.export.outputs",
    )
    parser.add_argument(
        "--keep", metavar="NAME,...", type=_names, default=[], help="what of a batch to write beside it"
    )
    parser.add_argument(
        "--inputs",
        metavar="NAME,...",
        type=_names,
        help="what of a batch build() is given; default: what a training batch has, too",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=_path(SUFFIXES),
        help=f"ends in {' or '.join(SUFFIXES)}; default: analysis/<checkpoint>-predict-<dataset>.jsonl there",
    )
    parser.add_argument("--overwrite", action="store_true", help="delete what is there already, and begin anew")


def run(model: ModelProtocol, args: Namespace) -> None:
    """Write one row for each example, in the order of the data.

    The file appears when it is whole. Until then parts of it are in a directory beside it, and the same command goes on
    behind the last one. What the predictions are of is in ``<file>.about.json``.

    Args:
        model: has been trained.
        args: `checkpoint`, `dataset` or `files`, `outputs`, `keep`, `inputs`, `output`, `overwrite`.

    Raises:
        CheckpointError: there is no checkpoint that fits.
        ConfigError: nobody says what to write.
        DataError: there is no such dataset, it has no end, cannot be read, or does not repeat.
        ExperimentError: other predictions are there, or the file cannot be written.
        ModelError: the model has no such output, or not one row of it for each example.
    """
    outputs = args.outputs or model.config.get("actions.export.outputs")
    if not outputs:
        raise ConfigError("say what to write: --outputs NAME,... or the key actions.export.outputs")
    restored = restore(model, args.checkpoint)
    built = restored.built
    if args.files:
        batches: Any = FileBatches(args.files, built.config["model.batch_size"], built.element_spec)
        data, label = ", ".join(map(str, args.files)), "files"
    else:
        data = label = choose_dataset(built.datasets, args.dataset)
        batches = built.datasets[data]
    given = args.inputs or [name for name in built.element_spec if name in batches.element_spec]
    names = {"inputs": ", ".join(given), "outputs": ", ".join([*outputs, *args.keep])}
    rows = {**restored.describe(), "data": data, **names}
    analysis = restored.experiment.directory / "analysis"
    path = args.output or analysis / f"{restored.checkpoint.path.name}-predict-{label}.jsonl"
    about = {**rows, "run_id": restored.checkpoint.meta.get("run_id"), "model code": built.facts()["sources"]}
    predictions = Predictions(path, about, overwrite=args.overwrite)
    if predictions.is_whole:
        say(f"{path} is there already, of the same checkpoint, data and outputs; --overwrite makes it anew")
        return
    say(plain_table(rows), end="\n\n")
    if predictions.batches:
        say(f"going on behind {predictions.examples:,} examples that are written")
    _predict(restored, batches, (given, outputs, args.keep), predictions)
    if not predictions.examples:
        raise DataError(f"there is nothing in {data} to predict for")
    predictions.join()
    odd = f" ({predictions.not_finite:,} numbers are not finite)" if predictions.not_finite else ""
    if args.output is None:
        restored.experiment.keep(predictions.about_file)
    where = path if args.output else restored.experiment.keep(path)
    say(f"written to {where}: {predictions.examples:,} examples{odd}")


def _predict(
    restored: Restored, batches: Any, names: tuple[Sequence[str], Sequence[str], Sequence[str]], there: Predictions
) -> None:
    """Add what is not there yet; a signal ends it behind a batch."""
    inputs, outputs, kept = names
    built, seen, digest = restored.built, 0, NO_BATCHES

    def is_new(batch: Any) -> bool:
        nonlocal seen, digest
        seen, digest = seen + 1, digest_behind(batch, digest)
        if seen == there.batches and digest != there.digest:
            raise DataError(
                "the data did not repeat: reading it again gave other batches than those whose predictions are there; "
                "--overwrite begins anew"
            )
        return seen > there.batches

    with built.stop, there.saved():
        found = DatasetPredictor(built.get_predictor(inputs, outputs), batches).pairs(is_new)
        for batch, values in found:
            size = int(batch_size(batch))
            of_model = {name: _rows(name, value, size) for name, value in zip(outputs, values, strict=True)}
            there.add({**of_model, **{name: _rows(name, _kept(batch, name), size) for name in kept}}, size, digest)
            if built.stop.signum is not None:
                break
        if seen < there.batches:
            raise DataError("the data did not repeat: it ended before what is there already; --overwrite begins anew")
    if built.stop.signum is not None:
        say(f"stopped behind {there.examples:,} examples; the same command goes on there")
        built.stop.check()


def _kept(batch: Any, name: str) -> Any:
    if not has_path(batch, name):
        raise DataError(f"--keep: a batch has no {name!r}; it has: {', '.join(batch)}")
    value = at_path(batch, name)
    return value.numpy() if isinstance(value, tf.Tensor) else value


def _rows(name: str, value: Any, size: int) -> Any:
    """What one output has for each example."""
    if isinstance(value, tf.SparseTensor | dict | tuple):
        raise ModelError(f"{name!r} is no tensor with a row for each example, but a {type(value).__name__}")
    if not value.shape or value.shape[0] != size:
        raise ModelError(f"{name!r} of shape {tuple(value.shape)} has not one row for each of {size} examples")
    return value


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise ArgumentTypeError(f"{text!r} must be names with commas between them, each once")
    return names


def _path(suffixes: Sequence[str]) -> Callable[[str], Path]:
    def path(text: str) -> Path:
        if Path(text).suffix not in suffixes:
            raise ArgumentTypeError(f"{text!r} must end in {' or '.join(suffixes)}")
        return Path(text)

    return path
