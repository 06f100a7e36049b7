"""Workers on a Ray cluster: what is wrong before any has started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from prototrain.errors import ClusterError, ConfigError
from tests.cluster.test_supervisor import run

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own


def test_there_is_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="there is no Ray cluster at 'nowhere:1' that this process can reach"):
        run(tmp_path, {}, cluster="nowhere:1")


def test_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'prototrain\[ray\]'"):
        run(tmp_path, {}, cluster="auto")
