"""Searches a catalogue with its own images, and writes the recall and a page of examples."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from prototrain.actions import add_checkpoint, restore
from prototrain.errors import DataError, ExperimentError
from prototrain.model import ModelProtocol
from prototrain.model.built import BuiltModel
from prototrain.system.files import write_atomic
from prototrain.system.terminal import Table, plain_table, print_tables

from ..config import positive
from ..faults import usable
from ..layouts import Picture, Shop, read_shop
from ..pictures import plain
from .outcome import KS, Outcome
from .page import write_page
from .retrieval import Array, retrieve


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the action."""
    add_checkpoint(parser)


def run(model: ModelProtocol, args: Namespace) -> None:
    """Embed queries and catalogue, retrieve exactly, print recall and write everything below ``analysis/``.

    Args:
        model: a trained model.
        args: `checkpoint`.

    Raises:
        CheckpointError: there is no matching checkpoint.
        DataError: an image is wrong, or no query has another image of its product.
        ExperimentError: a file cannot be written.
    """
    restored = restore(model, args.checkpoint)
    start = time.perf_counter()
    outcome = search(restored.built, read_shop())
    seconds = time.perf_counter() - start
    rows = {
        **restored.describe(),
        "pictures": f"{len(outcome.catalogue):,}, each searched for among the others ({seconds:.1f} s)",
    }
    print(plain_table(rows), end="\n\n")
    print_tables(Table(outcome.rounded(), outcome.headers), end="\n\n")
    directory = restored.experiment.directory / "analysis" / f"{restored.checkpoint.path.name}-retrieval"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_files(directory, outcome, rows)
    except OSError as error:
        raise ExperimentError(f"cannot write to {directory}: {error.strerror}") from error
    print(f"written to   {directory}\nlook at it   {directory / 'index.html'}")


def search(trainer: BuiltModel, shop: Shop) -> Outcome:
    """Find the most similar other pictures of the catalogue for each of its pictures.

    Raises:
        DataError: no picture has another one of its product in the catalogue.
    """
    catalogue = usable(shop, shop.catalogue)
    if not catalogue:
        raise DataError("no product has two pictures in the catalogue, so there is nothing to find")
    found = retrieve(
        embed(trainer, shop.directory, catalogue),
        k=max(*KS, positive("evaluate.retrieved")),
        products=np.unique([picture.product for picture in catalogue], return_inverse=True)[1],
        block=positive("evaluate.block"),
    )
    return Outcome(shop.directory, catalogue, found)


def embed(trainer: BuiltModel, directory: Path, pictures: list[Picture]) -> Array:
    """Return the embeddings of images, float32 [images, units]."""
    predict = trainer.get_predictor(["query"], ["query_embeddings"])
    paths = [str(directory / picture.path) for picture in pictures]
    dataset = tf.data.Dataset.from_tensor_slices(paths).map(plain, num_parallel_calls=tf.data.AUTOTUNE)
    batches = dataset.batch(positive("evaluate.batch_size")).prefetch(1)
    return np.concatenate([predict(batch)[0] for batch in batches])


def write_files(directory: Path, outcome: Outcome, rows: dict[str, str]) -> None:
    """Write numbers, lists and the page.

    Args:
        directory: an existing directory.
        outcome: the outcome of the search.
        rows: a description of the search, by name.
    """
    summary = {**rows, **outcome.summary()}
    write_atomic(directory / "recall.json", json.dumps(summary, indent=2) + "\n")
    write_atomic(directory / "top_retrieved.json", _top_retrieved(outcome, positive("evaluate.retrieved")))
    write_atomic(directory / "index.html", write_page(outcome, rows, shown=positive("evaluate.shown")))


def _top_retrieved(outcome: Outcome, k: int) -> str:
    """JSON with one line for each query."""
    lines = []
    for number, query in enumerate(outcome.catalogue):
        entry: dict[str, Any] = {
            **_described(query),
            "retrieved": [
                {**_described(picture), "similarity": round(similarity, 4), "right": right}
                for picture, similarity, right in outcome.retrieved_for(number, k)
            ],
        }
        lines.append(json.dumps(entry))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _described(picture: Picture) -> dict[str, str]:
    return {"path": picture.path, "product": picture.product, "class": picture.category}
