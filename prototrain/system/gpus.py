"""GPUs that are in the machine, whether TensorFlow sees them or not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

_DRIVER = Path("/proc/driver/nvidia/gpus")
_DEVICES = Path("/dev")
_SECONDS = 20.0


def gpus_in_machine(driver: Path = _DRIVER, devices: Path = _DEVICES) -> list[str]:
    """The names of the GPUs of NVIDIA's that this process could use, as their driver calls them.

    Those that CUDA_VISIBLE_DEVICES hides from everyone are none.

    Args:
        driver: where the driver says what there is.
        devices: where the devices are; a container that was given none has none of them.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return []
    if driver.is_dir() and any(devices.glob("nvidia[0-9]*")):
        files = sorted(driver.glob("*/information"))
        found = [re.search(r"^Model:\s*(.+?)\s*$", file.read_text(errors="replace"), re.MULTILINE) for file in files]
        return [match[1] if match else "a GPU" for match in found]
    return _asked()


def _asked() -> list[str]:
    """What nvidia-smi lists; nothing where it is not there, does not answer, or finds no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return re.findall(r"^GPU \d+: (.+?)(?: \(UUID.*)?$", done.stdout, re.MULTILINE) if done.returncode == 0 else []
