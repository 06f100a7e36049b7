"""What is said of a processor."""

from __future__ import annotations

from pathlib import Path

import pytest

from prototrain.system.processor import processor

X86 = """processor\t: 0
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC
cpu MHz\t\t: {mhz}
cache size\t: 512 KB
flags\t\t: fpu sse2 {flags}

processor\t: 1
model name\t: another
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"


def said(tmp_path: Path, content: str) -> str:
    path = tmp_path / f"{hash(content)}"
    path.write_text(content)
    return processor(path)


def test_a_model_and_its_instructions(tmp_path: Path) -> None:
    plain = said(tmp_path, X86.format(mhz=2000, flags="fma avx2 avx"))
    assert plain == "AMD EPYC, cpu family 25, model 1, cache size 512 KB (avx avx2 fma)"
    assert said(tmp_path, X86.format(mhz=2500.1, flags="avx avx2 fma")) == plain
    assert said(tmp_path, X86.format(mhz=2000, flags="avx avx2 avx512f fma")) != plain
    assert said(tmp_path, ARM) == "CPU implementer 0x41, CPU part 0xd40 (asimd sve)"


def test_a_system_that_does_not_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.processor", lambda: "arm")
    assert processor(tmp_path / "none") == "arm"
