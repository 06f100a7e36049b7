"""What is printed, when and how it is laid out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prototrain import Trainer
from prototrain.callbacks import ScalarPrinter
from prototrain.callbacks.writers.scalar_printer import table
from prototrain.errors import CallbackError
from tests.callbacks.helpers import Puts


class Many(Trainer):
    def __init__(self, outputs: dict[str, Any], **keywords: Any) -> None:
        super().__init__(**keywords)
        self.values = outputs

    def run_step(self) -> dict[str, Any]:
        return self.values


def printed(capsys: pytest.CaptureFixture[str], outputs: dict[str, Any], *callbacks: Any, steps: int = 1) -> list[str]:
    Many(outputs).train(callbacks, max_steps=steps)
    lines = capsys.readouterr().out.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("step "))
    return [line for line in lines[first:] if line and not line.startswith("where ")]


def test_a_column_for_each_name_and_a_row_for_each_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    puts = Puts(s2={"vld/loss": 0.123456, "vld/accuracy": 1.0, "alone": 12345.0})
    lines = printed(capsys, {"loss": 1e-5, "accuracy": 0.9375}, puts, ScalarPrinter().every(steps=2), steps=2)
    assert lines == [
        "step 2, epoch 1       alone    accuracy        loss",
        "                      12345",
        "trn                              0.9375       1e-05",
        "vld                                   1      0.1235",
    ]


def test_a_scalar_of_an_earlier_step_says_so_and_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, {"loss": 2.0}, Puts(s1={"vld/loss": 0.5}), ScalarPrinter().every(steps=2), steps=4)
    assert [" ".join(line.split()) for line in lines] == [
        "step 2, epoch 1 loss",
        "trn 2",
        "vld (step 1) 0.5",
        "step 4, epoch 1 loss",
        "trn 2",
    ]


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({}, ["accuracy", "loss", "loss_l2"]),
        ({"whitelist": ["trn/loss"]}, ["loss", "loss_l2"]),
        ({"whitelist": ["trn/loss$", ".*accuracy"]}, ["accuracy", "loss"]),
        ({"blacklist": [".*_l2"]}, ["accuracy", "loss"]),
        ({"whitelist": ["trn/loss"], "blacklist": [".*_l2"]}, ["loss"]),
        ({"whitelist": []}, []),
    ],
    ids=str,
)
def test_white_and_blacklist(capsys: pytest.CaptureFixture[str], keywords: Any, expected: list[str]) -> None:
    outputs = {"loss": 1.0, "loss_l2": 2.0, "accuracy": 3.0}
    lines = printed(capsys, outputs, ScalarPrinter(**keywords).every(steps=1))
    assert lines[0].split()[4:] == expected


@pytest.mark.parametrize("keywords", [{"whitelist": ["("]}, {"blacklist": ["*"]}, {"whitelist": "loss"}], ids=str)
def test_wrong_patterns_are_refused(keywords: Any) -> None:
    with pytest.raises(CallbackError, match="ScalarPrinter"):
        ScalarPrinter(**keywords)


def test_many_scalars_go_into_several_blocks_that_line_up() -> None:
    row = {f"metric_{number}": "0.5" for number in range(20)}
    lines = table("step 10, epoch 1", {"trn": row, "vld": {"metric_19": "0.25"}}, width=60).splitlines()
    assert max(map(len, lines)) <= 60
    assert sum(line.count("metric_") for line in lines) == 20
    assert sum(line.count("0.5") for line in lines) == 20
    assert [line.startswith("vld") for line in lines].count(True) == 1  # only in the block that has something of it
    header, numbers = lines[0], lines[1]
    assert len(header) == len(numbers)


def test_a_name_wider_than_the_page_has_a_block_of_its_own() -> None:
    lines = table("step 1", {"trn": {"a": "1", "n" * 80: "2", "b": "3"}}, width=40).splitlines()
    assert [line.split()[-1] for line in lines] == ["a", "1", "n" * 80, "2", "b", "3"]


def test_everything_goes_to_the_log_as_well(experiment: Path) -> None:
    Many({"loss": 1.0}, experiment=experiment).train([ScalarPrinter().every(steps=1)], max_steps=1)
    assert "step 1, epoch 1" in (experiment / "train.log").read_text()
