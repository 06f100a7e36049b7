"""A file of predictions that is whole or not there, and the parts of it that are written before."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

import numpy as np
import orjson
import tensorflow as tf

from prototrain.data.digest import NO_BATCHES
from prototrain.errors import ExperimentError, ModelError
from prototrain.system.files import sync, write_atomic

SUFFIXES = (".jsonl", ".npz")
_PART_SECONDS = 10.0
_PART_BYTES = 64 * 2**20
_PART = re.compile(r"(\d{9})-(\d{9})-(\d{12})-(\d{12})-([0-9a-f]{16})")  # batches and examples, from and to; the data

Rows = Mapping[str, Any]


class Predictions:
    """Rows for the examples of a dataset, as they come.

    Args:
        path: the file, which ends in one of `SUFFIXES`.
        about: what the rows are of, as JSON can hold it; kept beside the file.
        overwrite: delete what is there already, of whatever it is.
        clock: returns the time in seconds.

    Attributes:
        about_file: what says what the rows are of.
        batches, examples: how many are there.
        digest: of the batches that they are of.
        not_finite: how many numbers that were added are NaN or infinite; in JSON lines they are null.

    Raises:
        ExperimentError: what is there already is of something else, or the file cannot be written.
    """

    def __init__(
        self, path: Path, about: dict[str, Any], *, overwrite: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = path
        self.batches = self.examples = self.not_finite = 0
        self.digest = NO_BATCHES
        self._format: _JSONLines | _Arrays = _JSONLines() if path.suffix == ".jsonl" else _Arrays()
        self._directory = path.with_name(f"{path.name}.parts")
        self.about_file = path.with_name(f"{path.name}.about.json")
        self._clock = clock
        self._pending: list[Rows] = []
        self._parts: list[Path] = []
        with self._writing():
            self._begin(about, overwrite)
        self._written = self.batches, self.examples

    def _begin(self, about: dict[str, Any], overwrite: bool) -> None:
        if overwrite:
            self._remove(self.path, self.about_file)
        self._last = self._clock()
        content = json.dumps(about, indent=2) + "\n"
        then = self.about_file.read_text(encoding="utf-8") if self.about_file.exists() else None
        if then != content and (self.path.exists() or self._directory.exists()):
            raise ExperimentError(
                f"{self.path}: {_difference(then, about)}; name another file with -o, or say --overwrite"
            )
        if self.is_whole:
            self._remove()
        self._content = content
        for part in sorted(self._directory.iterdir()) if self._directory.exists() else ():
            name = _PART.fullmatch(part.stem)
            if name is None or int(name[1]) != self.batches:
                part.unlink()  # half of one, which a kill has left
            else:
                self._parts.append(part)
                self.batches, self.examples, self.digest = int(name[2]), int(name[4]), name[5]

    @property
    def is_whole(self) -> bool:
        """Whether the file is there."""
        return self.path.exists()

    def add(self, rows: Rows, examples: int, digest: str) -> None:
        """Add the rows of one batch.

        Args:
            rows: arrays with a row for each example, by name.
            examples: their number.
            digest: of the data up to this batch.

        Raises:
            ModelError: the format cannot hold them.
            ExperimentError: they cannot be written.
        """
        converted = {name: self._format.convert(name, value) for name, value in rows.items()}
        self.not_finite += sum(map(_not_finite, converted.values()))
        self._pending.append(converted)
        self.batches, self.examples, self.digest = self.batches + 1, self.examples + examples, digest
        size = sum(getattr(value, "nbytes", 0) for rows in self._pending for value in rows.values())
        if self._clock() - self._last > _PART_SECONDS or size > _PART_BYTES:
            self.save()

    @contextmanager
    def saved(self) -> Iterator[None]:
        """Write what was added at the end, whatever that is."""
        try:
            yield
        finally:
            self.save()

    def save(self) -> None:
        """Write what was added since the last part, as another one."""
        if self._pending:
            batches, examples = self._written
            name = f"{batches:09d}-{self.batches:09d}-{examples:012d}-{self.examples:012d}-{self.digest}"
            part = self._directory / f"{name}{self.path.suffix}"
            with self._writing():
                if not self._parts:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    write_atomic(self.about_file, self._content)
                    self._directory.mkdir(exist_ok=True)
                write_atomic(part, self._format.part(self._pending))
            self._parts.append(part)
            self._pending, self._written = [], (self.batches, self.examples)
        self._last = self._clock()

    def join(self) -> None:
        """Put the parts together into the file, and delete them."""
        self.save()
        whole = self._directory / "whole"
        with self._writing():
            with open(whole, "wb") as file:
                self._format.join(self._parts, self.examples, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(whole, self.path)
            sync(self.path.parent)
            self._remove()

    def _remove(self, *files: Path) -> None:
        for file in files:
            file.unlink(missing_ok=True)
        if self._directory.exists():
            shutil.rmtree(self._directory)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ExperimentError(f"cannot write {self.path}: {error.strerror or error}") from error


def _difference(then: str | None, now: dict[str, Any]) -> str:
    try:
        before = json.loads(then or "")
        changed = [
            f"{key} {before.get(key)!r}, not {value!r}" for key, value in now.items() if before.get(key) != value
        ]
    except (ValueError, AttributeError):
        return "is there already, and nothing says what it is of"
    return f"is there already, with {'; '.join(changed)}" if changed else "is there already, and of something else"


def _not_finite(value: Any) -> int:
    flat = value if isinstance(value, np.ndarray) else np.empty(0)
    return int(np.count_nonzero(~np.isfinite(flat))) if flat.dtype.kind == "f" else 0


class _JSONLines:
    """A line for each example."""

    def convert(self, name: str, value: Any) -> Any:
        if isinstance(value, tf.RaggedTensor):
            return value.to_list()
        array = _plain(name, value)
        if array.dtype.kind not in "OS":
            return array
        try:
            return [_decoded(row) for row in array.tolist()]
        except UnicodeDecodeError as error:
            raise ModelError(f"{name!r} has bytes that are no UTF-8, which JSON cannot hold; take .npz") from error

    def part(self, batches: list[Rows]) -> Iterator[bytes]:
        for rows in batches:
            for values in zip(*rows.values(), strict=True):
                row = dict(zip(rows, values, strict=True))
                yield orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)

    def join(self, parts: list[Path], examples: int, file: IO[bytes]) -> None:
        for part in parts:
            with open(part, "rb") as content:
                shutil.copyfileobj(content, file)


class _Arrays:
    """An array for each name."""

    def __init__(self) -> None:
        self._shapes: dict[str, tuple[int, ...]] = {}

    def convert(self, name: str, value: Any) -> Any:
        if isinstance(value, tf.RaggedTensor):
            raise ModelError(f"{name!r} is ragged, which .npz cannot hold; take .jsonl")
        array = _plain(name, value)
        if array.dtype.kind == "O":
            if any(text.endswith(b"\0") for text in array.ravel()):
                raise ModelError(f"{name!r} has texts that end in a NUL, which .npz cannot hold; take .jsonl")
            array = array.astype(bytes)
        self._check_shape(name, array.shape[1:])
        return array

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        if self._shapes.setdefault(name, shape) != shape:
            raise ModelError(
                f"{name!r} has rows of shape {self._shapes[name]} and of shape {shape}, which do not fit into one "
                "array; take .jsonl"
            )

    def part(self, batches: list[Rows]) -> list[bytes]:
        content = BytesIO()
        joined: dict[str, Any] = {name: np.concatenate([rows[name] for rows in batches]) for name in batches[0]}
        np.savez(content, **joined)
        return [content.getvalue()]

    def join(self, parts: list[Path], examples: int, file: IO[bytes]) -> None:
        """Write a `.npz` without having more than a part in memory."""
        heads: dict[str, np.dtype[Any]] = {}
        for part in parts:
            with np.load(part, allow_pickle=False) as content:
                for name in content.files:
                    array = content[name]
                    self._check_shape(name, array.shape[1:])
                    heads[name] = np.promote_types(heads.get(name, array.dtype), array.dtype)  # the longest texts
        with ZipFile(file, "w") as whole:
            for name, dtype in heads.items():
                with whole.open(f"{name}.npy", "w", force_zip64=True) as target:
                    shape = (examples, *self._shapes[name])
                    descr = np.lib.format.dtype_to_descr(dtype)
                    np.lib.format.write_array_header_2_0(
                        target, {"descr": descr, "fortran_order": False, "shape": shape}
                    )
                    for part in parts:
                        with np.load(part, allow_pickle=False) as content:
                            target.write(content[name].astype(dtype).tobytes())


def _plain(name: str, value: Any) -> np.ndarray[Any, Any]:
    """An array of a type that NumPy itself knows."""
    array = np.ascontiguousarray(value)
    if array.dtype.kind == "c":
        raise ModelError(f"{name!r} is complex; have build() return its parts")
    return array.astype(np.float32) if array.dtype.kind not in "biufOSU" or array.dtype.name == "bfloat16" else array


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(one) for one in value]
    return value.decode() if isinstance(value, bytes) else value
