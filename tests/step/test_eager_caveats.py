"""What a step in Python does not repeat after a resume is seen while it runs, and nothing else is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from prototrain import Trainer
from prototrain.callbacks import SaveOnExit
from prototrain.step.eager_caveats import saved_handles, unwatched, watching

saved = tf.Variable([1.0, 2.0])
unsaved = tf.Variable([1.0, 2.0])
of_keras = keras.Variable([1.0, 2.0])
generator = tf.random.Generator.from_seed(1)
unsaved_generator = tf.random.Generator.from_seed(1)
iterator = iter(tf.data.Dataset.range(99))
unsaved_iterator = iter(tf.data.Dataset.range(99))
seeds = keras.random.SeedGenerator(1)
PLACE = r" \(.*test_eager_caveats.py, line \d+\)"


@tf.function(autograph=False)
def draws() -> Any:
    return tf.random.normal([2])


@tf.function(autograph=False)
def calls() -> Any:
    return tf.cond(saved[0] > -9, lambda: saved + draws(), lambda: saved + 0)


@tf.function(autograph=False)
def changes() -> Any:
    unsaved.assign_add(saved)
    return tf.cond(saved[0] > -9, lambda: saved.assign_add(unsaved), lambda: saved + 0)


@tf.function(autograph=False)
def changes_what_is_saved() -> Any:
    return tf.cond(saved[0] > -9, lambda: saved.assign_add(unsaved), lambda: saved + 0)


@tf.function
def reads() -> Any:
    return next(unsaved_iterator)


INEXACT: dict[str, tuple[Callable[[], Any], str]] = {
    "normal": (lambda: tf.random.normal([2]), f"draws from tf.random.normal{PLACE}"),
    "dropout": (lambda: tf.nn.dropout(saved, 0.5), f"draws from tf.nn.dropout{PLACE}"),
    "in a function": (draws, f"draws from tf.random.normal{PLACE}"),
    "in a branch of a function": (calls, f"draws from tf.random.normal{PLACE}"),
    "in a function traced now": (lambda: tf.function(lambda: tf.random.uniform([2]))(), "draws from tf.random.uniform"),
    "python": (lambda: tf.py_function(lambda: 1.0, [], tf.float32), f"calls Python code{PLACE}"),
    "variable": (lambda: unsaved.assign_add(saved), f"changes a variable{PLACE} that no checkpoint holds"),
    "variable of a function": (changes, f"changes a variable{PLACE} that no checkpoint holds"),
    "generator": (lambda: unsaved_generator.normal([2]), f"changes a variable{PLACE} that no checkpoint holds"),
    "iterator": (lambda: next(unsaved_iterator), f"reads an iterator{PLACE} that no checkpoint holds"),
    "iterator of a function": (reads, f"reads an iterator{PLACE} that no checkpoint holds"),
}
EXACT: dict[str, Callable[[], Any]] = {
    "stateless": lambda: tf.random.stateless_normal([2], [1, 2]),
    "reading": lambda: saved + unsaved,
    "saved": lambda: saved.assign_add(unsaved),
    "saved in a function": changes_what_is_saved,
    "of keras": lambda: of_keras.assign(of_keras + 1),
    "generator": lambda: generator.normal([2]),
    "seeds of keras": lambda: keras.random.normal([2], seed=seeds),
    "iterator": lambda: next(iterator),
    "variable of the step": lambda: tf.Variable(1.0).assign_add(1.0),
    "dataset of the step": lambda: list(tf.data.Dataset.range(3).shuffle(3, seed=1).map(lambda x: x + 1)),
    "not looked at": lambda: unwatched()(draws)(),
}
HELD = (saved, of_keras, generator, iterator, seeds.state)


@pytest.mark.parametrize("name", INEXACT)
def test_what_does_not_repeat_is_named(name: str) -> None:
    function, words = INEXACT[name]
    with watching(saved_handles(HELD)) as found:
        function()
        function()
    assert len(set(found)) == len(found) and re.search(words, "\n".join(found)), found


@pytest.mark.parametrize("name", EXACT)
def test_what_repeats_is_not_named(name: str) -> None:
    with watching(saved_handles(HELD)) as found:
        EXACT[name]()
    assert found == []


class _Walk(Trainer):
    """A random walk."""

    def __init__(self, directory: Path, draw: Callable[[], Any]) -> None:
        super().__init__(experiment=directory)
        self.position = self.state["position"] = tf.Variable(0.0)
        self.state["seen"] = np.zeros(2)
        self.state["seeds"] = self.seeds = keras.random.SeedGenerator(1)
        self._draw = draw

    def run_step(self) -> dict[str, Any]:
        self.position.assign_add(tf.reduce_sum(self._draw() + keras.random.normal([2], seed=self.seeds)))
        return {"position": self.position}


@pytest.mark.parametrize(
    ("draw", "line"),
    [
        (
            lambda: tf.random.normal([2]),
            "resumed at step 2, not bit-exact, because the step draws from tf.random.normal",
        ),
        (lambda: tf.random.stateless_normal([2], [1, 2]), "resumed at step 2, exact"),
    ],
)
def test_a_run_says_so(draw: Callable[[], Any], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _Walk(tmp_path, draw).train([SaveOnExit()], max_steps=2)
    assert ("a run that goes on from this one" in capsys.readouterr().out) == ("not" in line)
    trainer = _Walk(tmp_path, draw)
    trainer.train([SaveOnExit()], max_steps=4)
    assert trainer.session.resume_line().startswith(line)
