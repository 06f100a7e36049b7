"""Atomic writes and safe file access."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from prototrain.system.files import open_file, outsider, write_atomic


@pytest.mark.parametrize(
    ("content", "expected"), [("h\u00e9llo\n", "h\u00e9llo\n".encode()), (b"\x00\xff", b"\x00\xff"), ("", b"")]
)
def test_write_text_and_bytes(tmp_path: Path, content: str | bytes, expected: bytes) -> None:
    path = tmp_path / "file"
    for _ in range(2):  # the second time over the first
        write_atomic(path, content)
        assert path.read_bytes() == expected
    assert list(tmp_path.iterdir()) == [path]


def test_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_atomic(path, "new" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def _socket(path: Path) -> None:
    # By its name alone: the whole path of a test's directory is too long for a socket.
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "file elsewhere": (lambda path: path.symlink_to("../elsewhere/file"), "a link to .*/elsewhere/file, outside"),
    "nothing elsewhere": (lambda path: path.symlink_to("/nowhere/at/all"), "a link to /nowhere/at/all, outside"),
    "through the parent": (lambda path: path.symlink_to("../run/../elsewhere"), "a link to .*/elsewhere, outside"),
    "a directory of like name": (lambda path: path.symlink_to("../run-2"), "a link to .*/run-2, outside"),
    "pipe": (os.mkfifo, "a pipe, a socket or a device"),
    "socket": (_socket, "a pipe, a socket or a device"),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("theirs")
    (tmp_path / "run" / "inner" / "most").mkdir(parents=True)
    (tmp_path / "run" / "file").write_text("ours")
    return tmp_path / "run"


@pytest.mark.parametrize(("make", "words"), ODD.values(), ids=ODD)
def test_outsiders_are_found(run: Path, make: Callable[[Path], object], words: str) -> None:
    assert outsider(run) is None
    make(run / "odd")
    found = outsider(run, deep=False)
    assert found is not None and found.startswith(f"{run / 'odd'} is ")
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(found)
    (run / "odd").rename(run / "inner" / "odd")
    if not (run / "inner" / "odd").is_symlink():
        assert outsider(run) == f"{run / 'inner' / 'odd'} is {words}"
    assert outsider(run, deep=False) is None


def test_inner_links_are_accepted(run: Path) -> None:
    (run / "inner" / "most" / "up").symlink_to("../../file")
    (run / "latest").symlink_to("inner")
    (run / "absolute").symlink_to(run / "inner")
    (run / "circle").symlink_to("circle")
    (run / "nothing").symlink_to("gone")
    (run / "itself").symlink_to(".")
    assert outsider(run) is None
    (run.parent / "link").symlink_to("run")
    assert outsider(run.parent / "link") is None  # the directory itself may be one
    (run / "chain").symlink_to("latest/../../elsewhere")
    assert "elsewhere" in (outsider(run.parent / "link") or "")


@pytest.mark.parametrize("missing", ["nothing", "run/file", "run/nothing/there"])
def test_missing_directory(run: Path, missing: str) -> None:
    assert outsider(run.parent / missing) is None


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_RDWR | os.O_APPEND])
@pytest.mark.parametrize("name", ["file elsewhere", "pipe", "socket"])
def test_only_regular_files_are_opened(run: Path, name: str, flags: int) -> None:
    ODD[name][0](run / "odd")
    with pytest.raises(OSError, match=r"it is (a link|not a file)") as raised:
        open_file(run / "odd", flags)
    assert raised.value.filename == str(run / "odd")
    assert (run.parent / "elsewhere" / "file").read_text() == "theirs"
    with open(open_file(run / "file", flags), "rb" if flags == os.O_RDONLY else "ab"):
        assert (run / "file").read_text() == "ours"


def test_planted_temporary_link_is_not_followed(run: Path) -> None:
    theirs = run.parent / "elsewhere" / "file"
    (run / f".tmp-file-{os.getpid()}").symlink_to(theirs)
    (run / "link").symlink_to(theirs)
    for name in ("file", "link"):
        write_atomic(run / name, "new")
        assert (run / name).read_text() == "new" and not (run / name).is_symlink()
    assert theirs.read_text() == "theirs"
