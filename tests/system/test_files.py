from __future__ import annotations

import importlib
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from prototrain.checkpoint.weights import read_weights
from prototrain.errors import ExperimentError, StorageError
from prototrain.experiment import Experiment
from prototrain.system.files import appearing, local_path, url_of, write_atomic
from tests.tiny import fails


def test_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in ("", b"\x00\xff", "h\u00e9llo\n", "old"):
        write_atomic(path, content)
        assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_atomic(path, "new" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("path", "url", "local"),
    [
        ("experiments/simple", None, "experiments/simple"),
        ("/data:1/x", None, "/data:1/x"),
        ("file:///tmp/x", None, "/tmp/x"),
        ("memory://bucket/x", "memory://bucket/x", None),
        ("MEMORY://bucket", "memory://bucket", None),
        (Path("memory://bucket/x"), "memory://bucket/x", None),  # without one slash
    ],
)
def test_url_of(path: str | Path, url: str | None, local: str | None) -> None:
    assert url_of(path) == url
    if local is not None:
        assert local_path(path) == Path(local)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("gx://bucket/x", "cannot use gx://bucket/x: Protocol not known: gx"),
        ("file://tmp/x", "a file URL has an absolute path, as file:///tmp/x"),
        ("memory://x/../y", "give a URL such as .* without . or .. in it"),
        ("s3://bucket/x", "cannot use s3://bucket/x: Install s3fs"),
    ],
)
@pytest.mark.parametrize("use", [Experiment, read_weights])
def test_errors_of_urls(url: str, said: str, use: Any, monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
    for package, scheme in (("gcsfs", "gs"), ("s3fs", "s3")):
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(importlib.import_module("fsspec.registry")._registry, scheme, raising=False)
    with pytest.raises(StorageError, match=said):
        use(url)
    assert list(scratch.iterdir()) == []


def test_without_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(StorageError, match=r"pip install 'prototrain\[cloud\]'$"):
        url_of("gs://bucket/x")


def test_unknown_scheme_is_an_error(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = fails(capsys, "run", "models.simple", "-s", "trainer.experiment_base_dir=gx://bucket/x")
    assert "cannot use gx://bucket/x" in said and not (scratch / "gx:").exists()


def test_directories_appear_at_once(tmp_path: Path) -> None:
    with appearing(tmp_path / "a/20") as temporary:
        temporary.mkdir()
        (temporary / "graph").write_bytes(b"graph")
        assert not (tmp_path / "a/20").exists()
    assert [path.name for path in (tmp_path / "a").rglob("*")] == ["20", "graph"]
    with pytest.raises(ZeroDivisionError), appearing(tmp_path / "a/21") as temporary:
        temporary.write_bytes(b"half")
        raise ZeroDivisionError
    with pytest.raises(ExperimentError, match="cannot write"), appearing(tmp_path / "a/20/graph/21"):
        pass
    assert [path.name for path in (tmp_path / "a").rglob("*")] == ["20", "graph"]
