"""What a run was made from."""

from __future__ import annotations

from pathlib import Path

from prototrain.experiment.provenance import source_digest


def test_a_file_may_be_renamed_and_a_package_not_rearranged(tmp_path: Path) -> None:
    one, other, package = tmp_path / "one.py", tmp_path / "other.py", tmp_path / "package"
    one.write_text("x = 1\n")
    other.write_text("x = 1\n")
    assert source_digest(one) == source_digest(other)
    package.mkdir()
    one.rename(package / "one.py")
    before = source_digest(package)
    (package / "one.py").rename(package / "two.py")
    assert source_digest(package) != before
    other.write_text("x = 2\n")
    assert source_digest(other) != source_digest(package / "two.py")
