"""Search a catalogue with queries, and write how well it went: numbers, plots, a page of examples, the embeddings."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tabulate import tabulate

from prototrain.actions import add_checkpoint, restore
from prototrain.errors import DataError, ExperimentError
from prototrain.model import ModelProtocol
from prototrain.model.built import BuiltModel
from prototrain.system.files import write_atomic
from prototrain.system.terminal import plain_table

from ..config import positive
from ..faults import answerable, usable
from ..layouts import Picture, Shop, read_shop
from ..pictures import WHOLE, plain
from .outcome import KS, Outcome
from .page import write_page
from .plots import draw_plots
from .projector import write_projector
from .retrieval import Array, retrieve


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what the action takes."""
    add_checkpoint(parser)


def run(model: ModelProtocol, args: Namespace) -> None:
    """Embed queries and catalogue, retrieve exactly, print recall and write everything below ``analysis/``.

    Args:
        model: has been trained.
        args: `checkpoint`.

    Raises:
        CheckpointError: there is no checkpoint that fits.
        DataError: the pictures are not as they should be, or no query has anything to find.
        ExperimentError: a file cannot be written.
    """
    restored = restore(model, args.checkpoint)
    start = time.perf_counter()
    outcome, embeddings = search(restored.built, read_shop())
    seconds = time.perf_counter() - start
    rows = {
        **restored.describe(),
        "queries": f"{len(outcome.queries):,} in {len(outcome.catalogue):,} pictures ({seconds:.1f} s)",
    }
    print(plain_table(rows), end="\n\n")
    print(tabulate(outcome.table(), headers=outcome.headers, floatfmt=".4f"), end="\n\n")
    directory = restored.experiment.directory / "analysis" / f"{restored.checkpoint.path.name}-retrieval"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_files(directory, outcome, rows)
        write_projector(restored.experiment.summaries, outcome, embeddings)
    except OSError as error:
        raise ExperimentError(f"cannot write to {directory}: {error.strerror}") from error
    print(f"written to   {directory}\nlook at it   {directory / 'index.html'}")
    print(f"embeddings   tensorboard --logdir {restored.experiment.summaries}, under Projector")


def search(trainer: BuiltModel, shop: Shop) -> tuple[Outcome, Array]:
    """Find the most similar pictures of the catalogue for each query.

    Returns:
        what was found, and the catalogue's embeddings, float32 [pictures, units].

    Raises:
        DataError: no query has another picture of its product in the catalogue.
    """
    catalogue = usable(shop, shop.catalogue)
    same = shop.queries is shop.catalogue
    queries = answerable(catalogue if same else usable(shop, shop.queries), catalogue)
    if not queries:
        raise DataError("no query has another picture of its product in the catalogue, so there is nothing to find")
    embeddings = embed(trainer, shop.directory, catalogue)
    row = {picture.path: number for number, picture in enumerate(catalogue)}
    itself = np.array([row.get(picture.path, -1) for picture in queries])
    products = np.unique([picture.product for picture in [*queries, *catalogue]], return_inverse=True)[1]
    found = retrieve(
        embeddings[itself] if (itself >= 0).all() else embed(trainer, shop.directory, queries),
        embeddings,
        k=max(*KS, positive("evaluate.retrieved")),
        query_products=products[: len(queries)],
        catalogue_products=products[len(queries) :],
        itself=itself,
        block=positive("evaluate.block"),
    )
    return Outcome(shop.directory, queries, catalogue, found), embeddings


def embed(trainer: BuiltModel, directory: Path, pictures: list[Picture]) -> Array:
    """The embeddings of pictures, float32 [pictures, units]."""
    predict = trainer.get_predictor(["query"], ["query_embeddings"])
    paths = [str(directory / picture.path) for picture in pictures]
    boxes = np.array([picture.box or WHOLE for picture in pictures], np.int32)
    dataset = tf.data.Dataset.from_tensor_slices((paths, boxes)).map(plain, num_parallel_calls=tf.data.AUTOTUNE)
    batches = dataset.batch(positive("evaluate.batch_size")).prefetch(1)
    return np.concatenate([predict(batch)[0] for batch in batches])


def write_files(directory: Path, outcome: Outcome, rows: dict[str, str]) -> None:
    """Write numbers, lists, plots and the page.

    Args:
        directory: exists.
        outcome: of the search.
        rows: what was searched with what, in words, by name.
    """
    summary = {**rows, **outcome.summary()}
    write_atomic(directory / "recall.json", json.dumps(summary, indent=2) + "\n")
    write_atomic(directory / "top_retrieved.json", _top_retrieved(outcome, positive("evaluate.retrieved")))
    plots = draw_plots(outcome)
    for name, content in plots.items():
        write_atomic(directory / f"{name}.png", content)
    write_atomic(directory / "index.html", write_page(outcome, rows, plots, shown=positive("evaluate.shown")))


def _top_retrieved(outcome: Outcome, k: int) -> str:
    """JSON with one line for each query."""
    lines = []
    for number, query in enumerate(outcome.queries):
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
