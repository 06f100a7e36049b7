"""What the processor is: another one may add the same numbers in another order, and round them in another way."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

_VECTORS = ("amx", "asimd", "avx", "bf16", "f16c", "fma", "i8mm", "sve")  # that TensorFlow chooses its kernels by
_MODEL = ("model name", "cpu family", "model", "stepping", "cache size", "CPU implementer", "CPU part", "CPU variant")


@functools.cache
def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model, its cache and its vector instructions, in words.

    Args:
        cpuinfo: where Linux says it; the first of several processors counts.
    """
    try:
        first = cpuinfo.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        return platform.processor() or platform.machine()
    pairs = (line.partition(":") for line in first.splitlines())
    said = {name.strip(): value.strip() for name, _, value in pairs}
    model = [said["model name"]] if "model name" in said else []
    model += [f"{name} {said[name]}" for name in _MODEL[1:] if name in said]
    flags = said.get("flags", said.get("Features", "")).split()
    vectors = sorted(flag for flag in flags if flag.startswith(_VECTORS))
    return f"{', '.join(model) or platform.machine()} ({' '.join(vectors)})"
