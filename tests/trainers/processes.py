"""Processes on the loopback address that train together, for the tests of the trainers that need several."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("worker.py")


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
        command = [sys.executable, str(SCRIPT), json.dumps(mine)]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    results = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=240)
            lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
            assert lines or process.returncode == -9, out[-2000:] + err[-3000:]
            results.append(json.loads(lines[0][7:]) if lines else None)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return results
