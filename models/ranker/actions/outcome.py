"""What a search has found, counted over all queries and class by class."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..layouts import Picture
from .retrieval import EDGES, Array, Retrieved, recall_at

KS = (1, 10, 20, 50)


@dataclass(frozen=True)
class Outcome:
    """Queries and what was retrieved for them.

    Attributes:
        directory: what the pictures' paths are relative to.
        queries: pictures that were searched with.
        catalogue: pictures that were searched in.
        retrieved: what was found; its indices are of the catalogue.
    """

    directory: Path
    queries: list[Picture]
    catalogue: list[Picture]
    retrieved: Retrieved

    headers = ("class", "queries", *(f"recall@{k}" for k in KS), "class of the first")

    @cached_property
    def classes(self) -> list[str]:
        """Names, sorted."""
        return sorted({picture.category for picture in [*self.queries, *self.catalogue]})

    @cached_property
    def confusion(self) -> Array:
        """How often a query of one class (row) found a picture of another (column) first, int64."""
        number = {name: index for index, name in enumerate(self.classes)}
        of_query = [number[picture.category] for picture in self.queries]
        of_first = [number[self.catalogue[index].category] for index in self.retrieved.indices[:, 0]]
        counts = np.zeros((len(self.classes), len(self.classes)), np.int64)
        np.add.at(counts, (of_query, of_first), 1)
        return counts

    def table(self) -> list[list[Any]]:
        """A row for each class and one for all: number of queries, recall@k, and how often what is found first is of
        the query's class."""
        of = np.array([picture.category for picture in self.queries])
        counts = self.confusion.sum(axis=1)
        rows: list[list[Any]] = []
        for number, name in enumerate(self.classes):
            if counts[number]:
                share = float(self.confusion[number, number] / counts[number])
                rows.append([name, int(counts[number]), *recall_at(KS, self.retrieved.right[of == name]), share])
        share = float(np.trace(self.confusion) / counts.sum())
        return [*rows, ["all", len(of), *recall_at(KS, self.retrieved.right), share]]

    def summary(self) -> dict[str, Any]:
        """The numbers as JSON can hold them."""
        *by_class, (_, *of_all) = self.table()
        return {
            **dict(zip(self.headers[1:], of_all, strict=True)),
            "classes": {name: dict(zip(self.headers[1:], row, strict=True)) for name, *row in by_class},
            "confusion": {"classes": self.classes, "counts": self.confusion.tolist()},
            "similarities": {
                "bin edges": [round(float(edge), 6) for edge in EDGES],
                "positives": self.retrieved.positives.tolist(),
                "negatives": self.retrieved.negatives.tolist(),
            },
        }

    def retrieved_for(self, query: int, k: int) -> list[tuple[Picture, float, bool]]:
        """The pictures that were found for a query, best first: each with its similarity and whether it is right."""
        rows = (self.retrieved.indices[query], self.retrieved.similarities[query], self.retrieved.right[query])
        found = zip(*(row[:k].tolist() for row in rows), strict=True)
        return [(self.catalogue[index], similarity, right) for index, similarity, right in found if index >= 0]
