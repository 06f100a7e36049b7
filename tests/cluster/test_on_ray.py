"""Workers on a Ray cluster of two nodes on this machine, one of which is lost and comes back."""

from __future__ import annotations

import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from prototrain.cluster import on_ray
from prototrain.errors import ClusterError, ConfigError
from tests.cluster.test_supervisor import none_is_left, run
from tests.preloaded import Program
from tests.ray_nodes import nodes

__all__ = ["nodes"]

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own

SCRIPT = """
import sys
from functools import partial
from prototrain import cluster
from prototrain.cluster import on_ray
from tests.cluster import launched

on_ray.ROOM_SECONDS = 2.0
script = [{"0": ("wait", 3), "1": ("wait", 3)}]
if __name__ == "__main__":
    cluster.run(partial(launched.act, sys.argv[1], script), workers=2, min_workers=1, cluster=sys.argv[2])
"""


def test_a_node_that_is_lost_and_comes_back(tmp_path: Path, nodes: Any) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    program = Program([str(tmp_path / "script.py"), str(tmp_path), nodes.address], cwd=Path.cwd())
    late = threading.Timer(150, program.send_signal, [9])
    late.start()
    seen = []
    for line in program.stdout:
        seen.append(line.strip())
        if re.match("group 0 of 2", line):
            while len((tmp_path / "pids").read_text().splitlines()) < 2:
                time.sleep(0.1)  # the other one is still being started
            nodes.remove_node(nodes.list_all_nodes()[1], allow_graceful=False)
            (tmp_path / "acted-0").touch()  # whoever is left hears of it by its connections
        elif re.match("group 1 of 1", line):
            nodes.add_node(num_cpus=1)
        elif re.match("group 1 of 2", line):
            program.send_signal(15)
    late.cancel()
    assert program.wait(20) == 143, seen
    text = "\n".join(seen)
    # Who is left may be the first to end.
    said = [line for line in seen if "starting" in line]
    assert re.search("(is lost with its machine.*|: another worker failed.*); starting all workers again", text), said
    assert f"there is room for 1 of 2 workers on {nodes.address}; going on with them" in text
    assert "group 1 of 1, because worker " in text
    assert "group 1 of 2, because there is room for all 2 workers again" in text
    assert none_is_left(tmp_path)


def test_there_is_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="there is no Ray cluster at 'nowhere:1' that this process can reach"):
        run(tmp_path, {}, cluster="nowhere:1")


def test_a_cluster_of_its_own_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(*_: Any, **__: Any) -> None:
        raise Exception("The current node timed out during startup.\nIt may be overloaded.")

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(ClusterError, match=r"'local' that this process can reach: .* startup\. It may be"):
        on_ray.connect("local", 2)


def test_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'prototrain\[ray\]'"):
        run(tmp_path, {}, cluster="auto")
