"""The results of a search, over all queries and class by class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..layouts import Picture
from .retrieval import Retrieved, recall_at

KS = (1, 10, 20, 50)


@dataclass(frozen=True)
class Outcome:
    """Images, and the images that were retrieved for each of them.

    Attributes:
        directory: the directory that paths are relative to.
        catalogue: the pictures.
        retrieved: the results; indices refer to the catalogue.
    """

    directory: Path
    catalogue: list[Picture]
    retrieved: Retrieved

    headers = ("class", "queries", *(f"recall@{k}" for k in KS))

    def table(self) -> list[list[Any]]:
        """Return a row per class and one for all: number of queries and recall@k."""
        of, right = np.array([picture.category for picture in self.catalogue]), self.retrieved.right
        classes = [[name, int((of == name).sum()), *recall_at(KS, right[of == name])] for name in sorted(set(of))]
        return [*classes, ["all", len(of), *recall_at(KS, right)]]

    def rounded(self) -> list[list[Any]]:
        """Return `table` for people."""
        return [[name, number, *(round(value, 4) for value in recalls)] for name, number, *recalls in self.table()]

    def summary(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        *by_class, (_, *of_all) = self.table()
        return {
            **dict(zip(self.headers[1:], of_all, strict=True)),
            "classes": {str(name): dict(zip(self.headers[1:], row, strict=True)) for name, *row in by_class},
        }

    def retrieved_for(self, query: int, k: int) -> list[tuple[Picture, float, bool]]:
        """Return the images retrieved for a query, best first, each with its similarity and whether it is right."""
        rows = (self.retrieved.indices[query], self.retrieved.similarities[query], self.retrieved.right[query])
        found = zip(*(row[:k].tolist() for row in rows), strict=True)
        return [(self.catalogue[index], similarity, right) for index, similarity, right in found]
