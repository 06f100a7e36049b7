from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from prototrain.actions import inspect
from prototrain.callbacks import ExponentialMovingAverage, JSONWriter, SaveOnExit, Summaries
from prototrain.cli import main
from tests.test_cli import MODEL
from tests.tiny import fails, tiny_model

ACTION = '''
"""Shows what it was given."""

def add_arguments(parser):
    parser.add_argument("files", nargs="*")
    parser.add_argument("--top", type=int, default=1)

def run(model, args):
    print("mine", model.config["model.batch_size"], args.top, args.files)
'''


@pytest.fixture(autouse=True)
def _modules(scratch: Path) -> None:
    (scratch / "m.py").write_text(MODEL)
    (scratch / "mine.py").write_text(ACTION)
    (scratch / "no_action.py").write_text("")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ([], [], "mine 4 1 []"),
        (["-s", "model.batch_size=3"], ["--top", "5", "a", "b"], "mine 3 5 ['a', 'b']"),
        (["-s", "model.batch_size=3"], ["a", "-s", "model.batch_size=2"], "mine 2 1 ['a']"),
    ],
)
def test_custom_action_module_gets_its_arguments(
    before: list[str], after: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["action", *before, "m", "mine", *after]) == 0
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["evaluate", "--bottom"], 2, "there is no option --bottom"),
        (["mine", "--help"], 0, "Shows what it was given."),
    ],
)
def test_usage(arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=str(code)):
        main(["action", "m", *arguments])
    assert words in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("nothere", "no action 'nothere'"),
        ("no_action", "has no run(model, args)"),
        ("evaluate", "there is no checkpoint in experiments/e yet"),
    ],
)
def test_errors_are_one_line(action: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in fails(capsys, "action", "m", action)
    assert not Path("experiments").exists()


def test_variables_tensors_callbacks_and_numbers(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect.run(tiny_model(), Namespace())
    found = capsys.readouterr().out
    for words in ("fc0/kernel", "[8, 6]", "Validation", ".every(steps=100)", "SaveOnExit"):
        assert words in found
    # fc0 4 x 6 + 6, bn0 4 x 6, dropout's seed 2, logits 6 x 2 + 2
    assert "parameters  70, 56 of them trained\n" in found
    assert {path.name for path in scratch.iterdir()} == {"m.py", "mine.py", "no_action.py"}


def test_callbacks_are_listed_in_execution_order() -> None:
    callbacks = [SaveOnExit(), Summaries().every(steps=1, epochs=2), ExponentialMovingAverage(0.9), JSONWriter()]
    rows = [line.split() for line in str(inspect.callback_table(callbacks)).splitlines()[2:]]
    assert [" ".join(row) for row in rows] == [
        "evaluate Summaries().every(steps=1, epochs=2)",
        "evaluate ExponentialMovingAverage()",
        "write JSONWriter()",
        "save SaveOnExit()",
    ]
