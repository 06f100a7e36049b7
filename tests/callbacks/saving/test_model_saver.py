from __future__ import annotations

import json
import resource
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from prototrain.callbacks import JSONWriter, ModelSaver, RunOp, SaveOnExit
from prototrain.checkpoint.store import Checkpoints, Snapshot
from prototrain.errors import CheckpointError
from tests.callbacks.helpers import UNLIMITED, FillsDisk, kept_steps, timed
from tests.tiny import CountingTrainer, tiny_trainer

pytestmark = pytest.mark.usefixtures("disk")


@pytest.mark.parametrize(
    ("every", "max_to_keep", "steps", "kept", "asynchronous"),
    [(1, 2, 5, ([4, 5], [8, 9]), True), (2, 5, 7, ([2, 4, 6, 7], [4, 6, 7, 8, 9]), False)],
)
def test_newest_checkpoints_are_kept(
    experiment: Path, every: int, max_to_keep: int, steps: int, kept: tuple[list[int], ...], asynchronous: bool
) -> None:
    saver = ModelSaver(max_to_keep=max_to_keep, asynchronous=asynchronous).every(steps=every)
    CountingTrainer(experiment=experiment).train([saver], max_steps=steps)
    assert kept_steps(experiment) == kept[0]
    CountingTrainer(experiment=experiment).train([saver, SaveOnExit()], max_steps=9)  # also of the earlier run
    assert kept_steps(experiment) == kept[1]


def test_failing_save_at_the_end_is_an_error(experiment: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot save step 4"):
        CountingTrainer(experiment=experiment).train([SaveOnExit(), FillsDisk(3, 99, 100)], max_steps=4)
    resource.setrlimit(resource.RLIMIT_FSIZE, UNLIMITED)
    assert kept_steps(experiment) == []


def test_automatic_interval_in_a_run(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    time = [0.0]

    class Slow(ModelSaver):
        def trigger(self) -> None:
            super().trigger()
            time[0] += 2.0

    def tick() -> None:
        time[0] += 10.0

    saver = timed(Slow(max_to_keep=9).every(seconds="auto", failures_per_day=86.4), lambda: time[0])
    callbacks = [RunOp(tick, run_before=False).every(steps=1), JSONWriter(), saver]
    CountingTrainer(experiment=experiment).train(callbacks, steps_per_epoch=5, max_steps=18)
    # One minute until the first save, then sqrt(2 * 2 s * 1000 s) = 63 s (noticed after step 14), then the end.
    assert kept_steps(experiment) == [7, 15, 18]
    assert capsys.readouterr().out.count("saving every 1 min 3 s: a save holds up the training for 2 s") == 1
    rows = map(json.loads, (experiment / "metrics.jsonl").read_text().splitlines())
    recorded = {row["step"]: row["checkpoint/interval"] for row in rows}
    assert recorded == pytest.approx({7: 60, 15: 63.2456, 18: 63.2456})


def test_checkpoint_that_is_written_late_holds_the_values_of_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, start, go_on = {}, Checkpoints.start, threading.Event()

    def start_late(self: Checkpoints, snapshot: Snapshot, **options: bool) -> Callable[[], Path]:
        finish = start(self, snapshot, **options)

        def finish_late() -> Path:
            go_on.wait()
            return finish()

        return finish_late

    for late in (False, True):
        experiment = tmp_path / str(late)
        trainer = tiny_trainer(experiment)
        if late:
            monkeypatch.setattr(Checkpoints, "start", start_late)
        release = RunOp(go_on.set).every(steps=5)
        saver = ModelSaver(asynchronous=late).every(steps=3)
        trainer.train([saver, release], max_steps=5)
        files = (experiment / "checkpoints" / "step-0000000003").iterdir()
        written[late] = {file.name: file.read_bytes() for file in files if file.name != "meta.json"}
    assert written[False] == written[True]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_failing_save_is_reported_and_the_next_succeeds(
    asynchronous: bool, experiment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = Checkpoints.start

    def fail(self: Checkpoints, snapshot: Snapshot, **options: bool) -> Callable[[], Path]:
        def finish() -> Path:
            raise CheckpointError("cannot save step 4: no room")

        return finish if snapshot.step == 4 else start(self, snapshot, **options)

    monkeypatch.setattr(Checkpoints, "start", fail)
    saver = ModelSaver(asynchronous=asynchronous).every(steps=2)
    CountingTrainer(experiment=experiment).train([saver], max_steps=8)
    assert kept_steps(experiment) == [2, 6, 8]
    assert capsys.readouterr().out.count("WARNING: cannot save step 4: no room; training continues") == 1
