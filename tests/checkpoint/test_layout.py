"""What of values' places in memory no checkpoint keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prototrain import Trainer
from prototrain.callbacks import SaveOnExit
from prototrain.checkpoint.layout import not_kept, order_of

LIST: list[int] = [1, 2]
ARRAY = np.arange(12.0).reshape(3, 4)
HOLDS_ITSELF: list[Any] = []
HOLDS_ITSELF.append(HOLDS_ITSELF)

GAPS = ["gaps or with its axes in another order"]


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"a": LIST, "b": [1, 2]}, []),
        ({"a": (1, 2), "b": "text", "c": None, "d": {"k": LIST}}, []),
        ({"a": LIST, "b": LIST}, ["state['a'] and state['b'] share a list, which are two"]),
        ({"a": {"k": LIST}, "b": ({}, LIST)}, ["state['a'] and state['b'] share a list"]),
        ({"a": [LIST, LIST]}, ["state['a'] holds twice a list"]),
        ({"a": HOLDS_ITSELF}, ["state['a'] holds twice a list"]),
        ({"a": ARRAY, "b": ARRAY.copy()}, []),
        ({"a": ARRAY, "b": ARRAY}, ["state['a'] and state['b'] share the memory of an array"]),
        ({"a": ARRAY, "b": ARRAY[1:]}, ["share the memory"]),
        ({"a": ARRAY, "b": {"k": ARRAY.T}}, ["share the memory"]),
        ({"a": ARRAY[:1], "b": ARRAY[1:]}, []),
        ({"a": ARRAY[:0], "b": ARRAY}, []),
        ({"a": np.asfortranarray(ARRAY)}, []),
        ({"a": ARRAY[:, ::2]}, GAPS),
        ({"a": [np.zeros((2, 3, 4)).transpose(1, 0, 2)]}, GAPS),
    ],
)
def test_what_is_shared_and_what_has_gaps_is_named(entries: dict[str, Any], words: list[str]) -> None:
    found = not_kept(entries)
    assert len(found) == len(words) and all(word in line for word, line in zip(words, found, strict=True))


class Turns(Trainer):
    """Puts an array in Fortran's order into its state in the second step."""

    def __init__(self, experiment: Path) -> None:
        super().__init__(experiment=experiment)
        self.state["array"] = np.zeros((3, 4))

    def run_step(self) -> None:
        if self.global_step == 1:
            self.state["array"] = (self.state["array"].reshape(4, 3) + ARRAY.reshape(4, 3)).T


def test_an_array_comes_back_in_its_order(tmp_path: Path) -> None:
    for end in (2, 3):
        trainer = Turns(tmp_path)
        trainer.train([SaveOnExit()], max_steps=end)
    assert order_of(trainer.state["array"]) == "F" and trainer.session.resume_line() == "resumed at step 2, exact"
    np.testing.assert_array_equal(trainer.state["array"], ARRAY.reshape(4, 3).T)


def test_an_array_in_the_other_order_is_not_filled(tmp_path: Path) -> None:
    trainer = Turns(tmp_path)
    trainer.train([SaveOnExit()], max_steps=1)
    trainer = Turns(tmp_path)
    trainer.state["array"] = old = np.asfortranarray(np.ones((3, 4)))
    trainer.train([SaveOnExit()], max_steps=2)
    assert order_of(trainer.state["array"]) == "F" and trainer.state["array"] is not old


class Shares(Trainer):
    """From a step on, two of its entries share a list."""

    step = 5

    def __init__(self, experiment: Path) -> None:
        super().__init__(experiment=experiment)
        self.state |= {"one": [0], "other": [0]}

    def share(self) -> None:
        if self.global_step == self.step:
            self.state["other"] = self.state["one"]

    def run_step(self) -> None:
        self.share()


SHARED = "state['one'] and state['other'] share a list, which are two after a resume"


@pytest.mark.parametrize("step", [0, 1])
def test_what_two_entries_share_makes_a_resume_inexact(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], step: int
) -> None:
    trainer = Shares(tmp_path)
    trainer.step = step
    trainer.share()
    trainer.train([SaveOnExit()], max_steps=2)
    assert f"will not be bit-exact, because {SHARED}" in capsys.readouterr().out
    trainer = Shares(tmp_path)
    trainer.train([SaveOnExit()], max_steps=3)
    assert trainer.session.resume_line() == f"resumed at step 2, not bit-exact, because {SHARED}"
