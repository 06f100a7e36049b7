"""Makes the pictures of the site from a real run: ``python docs/pictures.py``.

Needs prototrain with the extra ``docs``, and Chromium for the pictures of pages.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
COLUMNS = 96
PROTOTRAIN = [sys.executable, "-m", "prototrain"]


def run_in_terminal(command: list[str], directory: Path) -> str:
    """What a command prints on a terminal of `COLUMNS`."""
    parent, child = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    subprocess.run(["stty", "cols", str(COLUMNS), "rows", "60"], stdin=child, check=True)
    process = subprocess.Popen(command, cwd=directory, env=environment, stdout=child, stderr=child)
    os.close(child)
    said = io.BytesIO()
    while True:
        try:
            said.write(os.read(parent, 65536))
        except OSError:  # the command has ended
            break
    if process.wait():
        raise SystemExit(f"{' '.join(command)} failed:\n{said.getvalue().decode()}")
    return said.getvalue().decode()


def lines_of(said: str) -> list[str]:
    """The lines that stay on the screen: what follows the last return to the start of each line."""
    parts = [[part for part in line.split("\r") if part] for line in said.split("\n")]
    return [line[-1].rstrip() if line else "" for line in parts]


def draw(name: str, title: str, lines: list[str]) -> None:
    """Write a picture of a terminal."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(Text.from_ansi(line), crop=True, overflow="crop", no_wrap=True)
    drawn = re.sub(r"@font-face \{.*?\}\n", "", console.export_svg(title=title), flags=re.DOTALL)  # of another host
    (PICTURES / f"{name}.svg").write_text(drawn, encoding="utf-8")


def under_way(said: str) -> list[str]:
    """The lines of a run up to the last time that its progress bar was drawn before the end."""
    bars = [match for match in re.finditer(r"\r([^\r\n]*\d+/\d+ \[[^\r\n]*)", said) if "100%" not in match[1]]
    drawn = next(match for match in bars if match[1] == bars[-1][1])  # it is drawn again below each result
    lines = [line for line in lines_of(said[: drawn.start()]) if "steps/s," not in line and not line.endswith("...")]
    return [*lines, drawn[1].rstrip()]


def photograph(name: str, address: str, size: tuple[int, int], milliseconds: int = 8000) -> None:
    """Write a picture of a page."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("there is no chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1.5"]
    options += [f"--window-size={size[0]},{size[1]}", f"--virtual-time-budget={milliseconds}"]
    picture = PICTURES / f"{name}.png"
    subprocess.run(
        [browser, *options, f"--screenshot={picture}", address], check=True, timeout=120, capture_output=True
    )


def main() -> None:
    """Train, and make all pictures."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        said = run_in_terminal([*PROTOTRAIN, "run", "models.simple"], directory)
        draw("run", "prototrain run models.simple", under_way(said))
        draw("end", "prototrain run models.simple", lines_of(said[said.index("saved step") :]))
        other = ["-s", "trainer.experiment_name=small", "-s", "model.hidden_units=[16]"]
        run_in_terminal([*PROTOTRAIN, "run", "models.simple", *other], directory)
        run_in_terminal([*PROTOTRAIN, "report", "experiments/simple", "experiments/small", "-o", "r.html"], directory)
        photograph("report", f"file://{directory}/r.html", (1100, 820))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        board = [sys.executable, "-m", "tensorboard.main", "--logdir", "experiments", "--port", str(port)]
        address = f"http://127.0.0.1:{port}"
        server = subprocess.Popen(board, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for _ in range(60):
                with suppress(OSError), urllib.request.urlopen(f"{address}/data/runs") as runs:
                    if b"small" in runs.read():
                        break
                time.sleep(1)
            photograph("tensorboard", f"{address}/#scalars", (1250, 760), 20000)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
