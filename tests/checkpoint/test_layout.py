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


class Holds(Trainer):
    """Has its entry in an attribute, too."""

    def __init__(self, experiment: Path, order: Any) -> None:
        super().__init__(experiment=experiment)
        self.array = self.state["array"] = np.zeros((3, 4), order=order)

    def run_step(self) -> None:
        self.array += 1


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_is_filled_and_stays_in_its_order(tmp_path: Path, order: str) -> None:
    Holds(tmp_path, order).train([SaveOnExit()], max_steps=2)
    trainer = Holds(tmp_path, order)
    trainer.train([SaveOnExit()], max_steps=3)
    assert trainer.session.resume_line() == "resumed at step 2, exact"
    assert trainer.state["array"] is trainer.array and order_of(trainer.array) == order
    np.testing.assert_array_equal(trainer.array, np.full((3, 4), 3.0))


def test_an_array_that_was_in_the_other_order_is_filled_and_not_called_exact(tmp_path: Path) -> None:
    Turns(tmp_path).train([SaveOnExit()], max_steps=2)
    trainer = Turns(tmp_path)
    old = trainer.state["array"]
    trainer.train([SaveOnExit()], max_steps=3)
    assert trainer.state["array"] is old
    np.testing.assert_array_equal(old, ARRAY.reshape(4, 3).T)
    said = "state['array'] had its numbers in another order in memory (C or Fortran)"
    assert trainer.session.resume_line() == f"resumed at step 2, not bit-exact, because {said}"


class Shares(Trainer):
    """From a step on, two of its entries share a list."""

    not_compared = ("step",)
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
