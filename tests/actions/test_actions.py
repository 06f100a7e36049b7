from __future__ import annotations

from pathlib import Path

import pytest

from prototrain.cli import main
from tests.test_cli import MODEL

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
    assert main(["action", "m", action]) == 1
    said = capsys.readouterr().err
    assert said.startswith("prototrain: error: ") and said.count("\n") == 1 and words in said
    assert not Path("experiments").exists()
