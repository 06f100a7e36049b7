"""Processes on the loopback address that train together, for the tests of the trainers that need several."""

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


def run(tasks: list[str], orders: list[dict[str, Any]] | None = None, **order: Any) -> list[dict[str, Any] | None]:
    """Run `worker.py` in several processes.

    Args:
        tasks: the kind of each in ``TF_CONFIG``; a single process gets none.
        orders: for each what it has to do, besides `order`, which is for all.

    Returns:
        what each printed at its end, or None if it was killed.
    """
    sockets = [socket.socket() for _ in tasks]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    cluster: dict[str, list[str]] = {}
    indices = []
    for task, one in zip(tasks, sockets, strict=True):
        addresses = cluster.setdefault(task, [])
        indices.append(len(addresses))
        addresses.append(f"127.0.0.1:{one.getsockname()[1]}")
    for one in sockets:
        one.close()
    processes = []
    for place, (task, index) in enumerate(zip(tasks, indices, strict=True)):
        mine = {**order, **(orders[place] if orders else {}), "index": place}
        environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        if len(tasks) > 1:
            environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": task, "index": index}})
        processes.append(Program([str(SCRIPT), json.dumps(mine)], environment))
    results = []
    late = threading.Event()

    def give_up() -> None:
        late.set()
        for process in processes:
            process.send_signal(signal.SIGKILL)

    deadline = threading.Timer(TIMEOUT, give_up)
    deadline.start()
    try:
        with ThreadPoolExecutor(len(processes)) as readers:  # none may wait until another one's output is taken
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
