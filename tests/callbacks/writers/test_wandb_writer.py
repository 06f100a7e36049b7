from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prototrain import Callback
from prototrain.callbacks import ModelSaver, Summaries, WandbWriter
from tests.callbacks.helpers import Fails, Puts
from tests.tiny import At, CountingTrainer, tiny_config

pytestmark = pytest.mark.filterwarnings("default")  # W&B's own
_BLOCK = 32768


def records(path: Path) -> Iterator[Any]:
    """Return the records of a .wandb file: LevelDB's log format after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, begun = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if _BLOCK - place % _BLOCK < 7:
            place += _BLOCK - place % _BLOCK
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        begun += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield Record.FromString(begun)
            begun = b""


@pytest.fixture(autouse=True)
def _hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores the exception hooks that W&B replaces."""
    for name in ("exit", "excepthook"):
        monkeypatch.setattr(sys, name, getattr(sys, name))


def test_run_and_its_continuation(experiment: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb")

    def run(*callbacks: Callback, **config: Any) -> list[Any]:
        """The record of the attempt."""
        trainer = CountingTrainer(experiment=experiment)
        trainer.config = tiny_config(**config)
        known = set(tmp_path.glob("wandb/offline-*/*.wandb"))
        options: dict[str, Any] = {"mode": "offline", "dir": tmp_path, "settings": {"silent": True, "console": "off"}}
        options["id"] = "chosen"
        writer = WandbWriter("tests", **options)
        with suppress(RuntimeError):
            draw = At(2, lambda: trainer.monitors.put_image("samples", np.full((3, 4), 9)))
            trainer.train([Summaries().every(steps=1), writer, draw, *callbacks], max_steps=6)
        [file] = set(tmp_path.glob("wandb/offline-*/*.wandb")) - known
        return list(records(file))

    def rows(found: list[Any]) -> list[dict[str, Any]]:
        items = [record.history.item for record in found if record.HasField("history")]
        return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row} for row in items]

    def last(found: list[Any], field: str) -> Any:
        return [getattr(record, field) for record in found if record.HasField(field)][-1]

    first = run(ModelSaver().every(steps=4), Puts(s2={"vld/loss": 3}), Fails(5))
    second = run(model__batch_size=16)
    assert [row["global_step"] for row in rows(first) if "trn/loss" in row] == [1, 2, 3, 4, 5]
    assert [row["global_step"] for row in rows(second) if "trn/loss" in row] == [5, 6]
    assert any(row.get("vld/loss") == 3 for row in rows(first))
    assert [row["samples/count"] for row in rows(first) if "samples/count" in row] == [1], rows(first)
    begun, again = last(first, "run"), last(second, "run")
    assert begun.run_id == again.run_id == "chosen" and (begun.project, begun.display_name) == ("tests", "experiment")
    assert (last(first, "exit").exit_code, last(second, "exit").exit_code) == (1, 0)

    def values(name: str) -> list[Any]:
        every = [record for found in (first, second) for record in found]
        updates = [u for r in every for u in (r.run.config.update, r.config.update, r.summary.update)]
        return [json.loads(item.value_json) for update in updates for item in update if item.key == name]

    assert (values("model.batch_size")[0], values("model.batch_size")[-1]) == (8, 16)
    assert list(dict.fromkeys(values("outcome"))) == ["running", "failed: RuntimeError: on purpose", "finished"]
