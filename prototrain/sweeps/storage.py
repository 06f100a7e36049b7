"""The storage of a sweep: a database, or an Optuna journal file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from prototrain.errors import SweepError


def sqlite_url(path: Path) -> str:
    """Return the URL of an SQLite file."""
    url = URL.create("sqlite", database=str(path)).render_as_string()
    return url.replace("{", "{{").replace("}", "}}")  # Optuna treats URLs as format strings


def open_storage(where: str) -> BaseStorage:
    """Open a storage and create it if needed.

    Args:
        where: a URL such as ``postgresql://user@host/database``, or the path of a journal file.

    Raises:
        SweepError: the storage cannot be opened, or the driver for it is not installed.
    """
    try:
        return _open_database(where) if "://" in where else JournalStorage(JournalFileBackend(where))
    except ImportError as error:
        raise SweepError(f"the storage {shown(where)} needs a database driver: {error.__cause__ or error}") from error
    except Exception as error:  # a damaged file, or one that is no journal, raises almost anything
        raise SweepError(f"cannot open the storage {shown(where)}: {_reason(error)}") from error


def _open_database(url: str) -> BaseStorage:
    is_file = make_url(url).get_backend_name() == "sqlite"
    return RDBStorage(url, engine_kwargs={"connect_args": {"timeout": 60}} if is_file else {"pool_pre_ping": True})


def shown(where: str) -> str:
    """Return the URL of a storage without its password."""
    try:
        return make_url(where).render_as_string(hide_password=True)
    except ArgumentError:
        return where


def _reason(error: BaseException) -> str:
    """Return the line of a storage error that tells the cause."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    original = getattr(error, "orig", None) or error
    return (str(original).strip() or type(original).__name__).splitlines()[0]


@contextmanager
def reporting_failures(where: str) -> Iterator[None]:
    """Raise a `SweepError` with one line if an open storage fails."""
    try:
        yield
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        raise SweepError(
            f"the storage {shown(where)} failed: {_reason(error)}; the same command continues once it is back"
        ) from error
