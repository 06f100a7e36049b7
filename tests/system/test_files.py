"""Atomic writes."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from prototrain.system.files import write_atomic


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
