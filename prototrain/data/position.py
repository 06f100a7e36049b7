"""A position in the training data: how it moves, and how it is written to a checkpoint and found again.

The stream of batches never asks which class it has. `SavedPosition` ("iterator") and `ReplayedPosition` ("replay") are
exact for what is known of a pipeline, `GrainPosition` and `IndexedPosition` ("iterator") where the place is a small
value of the data's own; `RestartedPosition` ("restart") is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import tensorflow as tf

from prototrain.data.elements import first_batch
from prototrain.data.reading_ahead import PREFETCH, prefetched
from prototrain.data.source import Source

Meta = dict[str, Any]


class Position:
    """A place in the data; each class says how a run comes back to it.

    Args:
        source: builds the datasets.
        announce: called with a line of text that the user should know.

    Attributes:
        mode: the class's name, in checkpoints and in messages.
        endless: whether the iterator never ends; otherwise each pass has its own.
        keeps_place: whether a resume comes back to the place; otherwise it starts a new pass.
        names_files: whether what is written may have the names of the data's files, and read them by these.
        iterator: what batches are read from; another object after a restore or a new pass.
        number: of the pass, from 0.
        offset: how many batches of the pass have been trained on.
        behind: how many of these have still to be read again from the iterator.
    """

    mode: ClassVar[str]
    endless: ClassVar[bool] = False
    keeps_place: ClassVar[bool] = True
    names_files: ClassVar[bool] = False

    def __init__(self, source: Source, announce: Callable[[str], None]) -> None:
        self._source = source
        self._announce = announce
        self.iterator: Any = None
        self.number = self.offset = self.behind = 0

    def look(self) -> dict[str, Any]:
        """Read the first batch, and go back to before it.

        Raises:
            DataError: there is none, or it cannot be read.
        """
        first = first_batch(self.iterator)
        self.rewind()
        return first

    def begin(self, number: int) -> None:
        """Go to the start of a pass."""
        self.iterator = None  # the old one may hold the lock of a cache's file
        self.iterator = iterate(self._source.training_of(number))
        self.number, self.offset, self.behind = number, 0, 0

    def rewind(self) -> None:
        """Go back to before the last batch that was trained on, after a step that read one and failed.

        What lies between is read only when the run goes on: reading it now could meet the very record that made the
        step fail.
        """
        raise NotImplementedError

    def write(self, prefix: str) -> Callable[[], Meta]:
        """Hold on to the place; returns a function, for any thread, that writes it and returns what `read` needs."""
        place = {"offset": self.offset, "behind": self.behind, "pass": self.number}
        return lambda: place

    def read(self, prefix: str, meta: Meta) -> str | None:
        """Go to a place that was written.

        Args:
            prefix: where its files start.
            meta: what the function that `write` returned has returned.

        Returns:
            why it is not the exact place, or None.

        Raises:
            CheckpointError: the files cannot be read; the present place stays.
        """
        raise NotImplementedError

    def caught_up(self) -> str | None:
        """Take note that no batches are left behind; returns why what was read is not what was trained on, or None."""
        return None


class RestartedPosition(Position):
    """Each run starts a new pass.

    Args:
        source: see `Position`.
        announce: see `Position`.
        reason: why there is nothing better.
    """

    mode = "restart"
    keeps_place = False

    def __init__(self, source: Source, announce: Callable[[str], None], reason: str) -> None:
        super().__init__(source, announce)
        self._reason = reason
        self.iterator = iterate(source.training)

    def rewind(self) -> None:
        pass  # the batch of the failed step is lost, as is the rest of the pass with a resume

    def read(self, prefix: str, meta: Meta) -> str | None:
        self.begin(meta["pass"] + 1)
        return f"the training data starts anew: {self._reason}"


def iterate(dataset: tf.data.Dataset, *, endless: bool = False) -> Any:
    """Begin reading a dataset, some batches ahead.

    Args:
        dataset: gives batches.
        endless: begin it anew at its end.
    """
    if endless and int(dataset.cardinality()) != tf.data.INFINITE_CARDINALITY:
        dataset = dataset.repeat()
    return iter(prefetched(dataset, PREFETCH))
