"""Where a sweep is kept: a database, or a journal file of Optuna's."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from prototrain.errors import SweepError
from prototrain.system.contained import special

FAILURES: Final = (SQLAlchemyError, optuna.exceptions.OptunaError, OSError, RuntimeError, ValueError)
_ATTEMPTS: Final = 10
_BESIDE: Final = ("", "-journal", "-shm", "-wal")  # what SQLite adds to a file's name, for files of its own
_BLOCK: Final = 2**16
_RECORD: Final = b'{"op_code":'  # what each line of a journal begins with


def sqlite_url(path: Path) -> str:
    """Return the URL of an SQLite file."""
    url = URL.create("sqlite", database=str(path)).render_as_string()
    return url.replace("{", "{{").replace("}", "}}")  # Optuna takes URLs for format strings


def own_database(path: Path) -> str:
    """The URL of the SQLite file that a sweep makes for itself.

    Raises:
        SweepError: it is a link, so that another file would be written.
    """
    for name in (f"{path}{suffix}" for suffix in _BESIDE):
        if os.path.islink(name):
            raise SweepError(f"{name} is a link to {os.path.realpath(name)}; remove it, or name that with --storage")
    return sqlite_url(path)


def open_storage(where: str) -> BaseStorage:
    """Open a storage, and make it if it is not there.

    Args:
        where: a URL such as ``postgresql://user@host/database``, or the path of a journal file.

    Raises:
        SweepError: it cannot be reached or opened; the message has no password in it.
    """
    try:
        return _open_database(where) if "://" in where else _open_journal(where)
    except ImportError as error:
        raise SweepError(f"the storage {shown(where)} needs a database driver: {error.__cause__ or error}") from error
    except FAILURES as error:
        raise SweepError(f"cannot open the storage {shown(where)}: {reason(error)}") from error


def _open_journal(path: str) -> BaseStorage:
    _require_file(path)
    _drop_half_a_record(path)
    try:
        return JournalStorage(JournalFileBackend(path))
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        raise SweepError(
            f"cannot open the storage {path}: it is damaged, or no journal; put a copy back, or name another"
        ) from error


def _drop_half_a_record(path: str) -> None:
    """Cut off what a process that was killed has left of its last record: Optuna would append the next one to it.

    A file that is no journal is left alone.
    """
    if not os.path.exists(path):
        return
    with open(path, "rb") as file:
        if file.read(len(_RECORD)) != _RECORD:
            return
    lock = JournalFileSymlinkLock(path)  # nobody else is writing who has it
    lock.acquire()
    try:
        with open(path, "rb+") as file:
            size = end = file.seek(0, os.SEEK_END)
            found = -1
            while end and found < 0:
                begin = max(end - _BLOCK, 0)
                file.seek(begin)
                found = file.read(end - begin).rfind(b"\n")
                end = begin
            whole = begin + found + 1 if size else 0
            if whole < size:
                file.truncate(whole)
    finally:
        lock.release()


def _require_file(path: str) -> None:
    what = special(os.path.realpath(path))
    if what is not None:  # it would be waited for
        raise SweepError(f"the storage {path} is {what}, not a file")


def _open_database(url: str) -> BaseStorage:
    is_file = make_url(url).get_backend_name() == "sqlite"
    if is_file and (path := make_url(url).database):
        _require_file(path)
    options = {"connect_args": {"timeout": 60}} if is_file else {"pool_pre_ping": True}
    for left in reversed(range(_ATTEMPTS)):
        try:
            return RDBStorage(url, engine_kwargs=options)
        except (SQLAlchemyError, AssertionError) as error:
            # Of several processes that make the tables at the same time all but one fail, and find them afterwards.
            if not left or not _was_outrun(error):
                raise
            time.sleep(0.2)
    raise AssertionError


def _was_outrun(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, AssertionError) or any(word in text for word in ("already exists", "unique", "duplicate"))


def shown(where: str) -> str:
    """A storage's URL without its password."""
    try:
        return make_url(where).render_as_string(hide_password=True)
    except ArgumentError:
        return where


def reason(error: BaseException) -> str:
    """The line of a storage's error that says what happened."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    original = getattr(error, "orig", None) or error
    return (str(original).strip() or type(original).__name__).splitlines()[0]


@contextmanager
def reporting_failures(where: str) -> Iterator[None]:
    """Turn failures of a storage that was open before into an error with one clear line.

    Raises:
        SweepError: the storage has failed.
    """
    try:
        yield
    except json.JSONDecodeError as error:  # of a journal; whatever a model raises is its trial's outcome
        raise SweepError(f"the journal {where} is damaged: {reason(error)}; put a copy back") from error
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        raise SweepError(
            f"the storage {shown(where)} failed: {reason(error)}; the same command goes on once it is back"
        ) from error
