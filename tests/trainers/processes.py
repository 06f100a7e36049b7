"""Two workers on the loopback address, for the tests of trainers that need several processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.preloaded import Program

SCRIPT = Path(__file__).with_name("worker.py")
TIMEOUT = 240.0


def run(*orders: dict[str, Any], **order: Any) -> list[dict[str, Any] | None]:
    """Run `worker.py` in two processes.

    Args:
        orders: for each what it has to do, besides `order`, which is for both.

    Returns:
        what each printed at its end, or None if it was killed.
    """
    with socket.socket() as first, socket.socket() as second:
        for one in (first, second):
            one.bind(("127.0.0.1", 0))
        cluster = {"worker": [f"127.0.0.1:{one.getsockname()[1]}" for one in (first, second)]}
    processes = []
    for place in range(2):
        mine = {**order, **(orders[place] if orders else {}), "index": place}
        task = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": place}})
        processes.append(Program([str(SCRIPT), json.dumps(mine)], {**os.environ, "TF_CONFIG": task}))
    results: list[dict[str, Any] | None] = []
    late = threading.Event()

    def report_failure() -> None:
        late.set()
        for process in processes:
            process.send_signal(signal.SIGKILL)

    deadline = threading.Timer(TIMEOUT, report_failure)
    deadline.start()
    try:
        with ThreadPoolExecutor(len(processes)) as readers:  # no worker may wait until another one's output is read
            outputs = list(readers.map(lambda process: process.stdout.read(), processes))
        assert not late.is_set(), "\n".join(out[-3000:] for out in outputs)
        for process, out in zip(processes, outputs, strict=True):
            code = process.wait(10)
            lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
            assert lines or code == -signal.SIGKILL, out[-5000:]
            results.append(json.loads(lines[0][7:]) if lines else None)
    finally:
        deadline.cancel()
        for process in processes:
            process.kill()
    return results
