from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from prototrain import Callback
from prototrain.callbacks import ModelSaver, Summaries, TensorBoardWriter
from tests.callbacks.helpers import Fails, FillsDisk, Puts, timed
from tests.tiny import CountingTrainer, tiny_config

pytestmark = pytest.mark.usefixtures("disk")


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values by tag, as TensorBoard shows them."""
    events = EventAccumulator(str(directory))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def run(experiment: Path, steps: int, *callbacks: Callback, resume: bool = True) -> Path:
    trainer = CountingTrainer(experiment=experiment)
    writer = timed(TensorBoardWriter(), lambda: 1e9)
    trainer.train([Summaries().every(steps=1), writer, *callbacks], max_steps=steps, resume=resume)
    return experiment / "summaries"


def test_sub_run_per_prefix(experiment: Path) -> None:
    summaries = run(experiment, 2, Puts(s2={"vld/loss": 3, "vld/layer/norm": 4, "alone": 5}))
    assert scalars(summaries / "trn") == {"loss": [(1, 1.0), (2, 0.5)]}
    assert scalars(summaries / "vld") == {"loss": [(2, 3.0)], "layer/norm": [(2, 4.0)]}
    assert scalars(summaries) == {"alone": [(2, 5.0)]}


@pytest.mark.parametrize(("save_every", "killed_at"), [(1, 1), (2, 3), (2, 4), (7, 4)])
def test_resumed_run_shows_every_step_once(experiment: Path, save_every: int, killed_at: int) -> None:
    saver = ModelSaver().every(steps=save_every)
    with pytest.raises(RuntimeError):
        run(experiment, 6, saver, Puts(s1={"alone": 1}, s4={"alone": 4}), Fails(killed_at))
    again = Puts(s1={"alone": 10}, s5={"alone": 5})
    summaries = run(experiment, 6, ModelSaver().every(steps=save_every), again)
    assert scalars(summaries / "trn") == {"loss": [(step, pytest.approx(1 / step)) for step in range(1, 7)]}
    saved = killed_at // save_every * save_every
    kept = ([(1, 1.0)] if saved else [(1, 10.0)]) + ([(4, 4.0)] if saved >= 4 else []) + [(5, 5.0)]
    assert scalars(summaries) == {"alone": kept}


def test_full_disk_ends_the_writing(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summaries = run(experiment, 9, FillsDisk(3, 5, 60), ModelSaver().every(steps=7))
    assert [step for step, _ in scalars(summaries / "trn")["loss"]] == [1, 2]
    assert capsys.readouterr().out.count("WARNING: cannot write") == 1
    run(experiment, 11)
    assert [step for step, _ in scalars(summaries / "trn")["loss"]] == [1, 2, 10, 11]


def test_config_as_text(experiment: Path) -> None:
    def train(steps: int, **config: Any) -> None:
        trainer = CountingTrainer(experiment=experiment)
        trainer.config = tiny_config(**config)
        trainer.train([TensorBoardWriter(), ModelSaver().every(steps=2)], max_steps=steps)

    train(2, model__batch_size=16)
    train(4)
    events = EventAccumulator(str(experiment / "summaries"))
    events.Reload()
    texts = events.Tensors("config")
    assert [event.step for event in texts] == [0, 2]
    assert re.search(rb"^    model.batch_size += 16$", texts[0].tensor_proto.string_val[0], re.MULTILINE)


def test_fresh_start_hides_the_old_run(experiment: Path) -> None:
    run(experiment, 5)
    summaries = run(experiment, 3, resume=False)
    assert [step for step, _ in scalars(summaries / "trn")["loss"]] == [1, 2, 3]
