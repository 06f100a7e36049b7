"""The README and the notebooks are correct: their programs run, and tables match the code."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib import pyplot

from prototrain.cli import _parser
from prototrain.config.schema import KERAS_OPTIMIZERS, SCHEMA, UNSET
from tests.conftest import ROOT
from tests.notebooks import execute
from tests.pages import read_blocks

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [block.code for block in read_blocks(ROOT / "README.md") if block.language == "python"]


@pytest.mark.parametrize("number", range(3))
def test_python_code_runs(number: int, scratch: Path) -> None:
    assert len(BLOCKS) == 3
    exec(compile(BLOCKS[number], f"README.md, block {number}", "exec"), {"__name__": "readme"})
    (experiment,) = (scratch / "experiments").iterdir()
    assert list((experiment / "checkpoints").glob("step-*"))
    assert (experiment / "metrics.jsonl").stat().st_size > 0


def test_configuration_table_equals_the_schema() -> None:
    rows = dict(re.findall(r"^\| `((?:trainer|model|actions)\.[\w.]+)` \| .*? \| (.*?) \|", TEXT, re.MULTILINE))
    shown = {key: spec for key, spec in SCHEMA.items() if key.split(".")[2:3] not in [[m] for m in KERAS_OPTIMIZERS]}
    assert list(rows) == list(shown)
    for key, spec in shown.items():
        plain = "" if spec.default is UNSET else f"`{spec.default!r}`".replace("'", '"')
        assert rows[key] == ("required" if spec.required else plain), key


def test_every_option_of_run_is_documented() -> None:
    usage = next(action for action in _parser()._actions if action.choices).choices["run"].format_usage()
    options = set(re.findall(r"--?[a-z-]+", usage)) - {"-h"}
    assert options <= set(re.findall(r"--?[a-z-]+", TEXT))


def test_output_of_a_run_is_shown(scratch: Path) -> None:
    shown = re.search(r"^model  .*?(?=\n\n step )", TEXT, re.MULTILINE | re.DOTALL)
    assert shown is not None
    from prototrain import SimpleTrainer, load_model
    from prototrain.trainers.report import opening

    trainer = SimpleTrainer(load_model("models.simple"), experiment="experiments/simple")
    trainer.max_steps = trainer.total_steps = trainer.config["model.num_steps"]
    trainer.steps_per_epoch = trainer.data.cardinality
    layers = trainer._describe_layers() or ""
    printed = ["", "start          fresh", *opening(trainer).splitlines(), *layers.splitlines()]
    assert [line for line in shown[0].splitlines() if line not in printed and line != "..."] == []


def test_site_shows_the_schema() -> None:
    hooks = runpy.run_path(str(ROOT / "docs" / "hooks.py"))
    config = SimpleNamespace(repo_url=None, config_file_path=str(ROOT / "mkdocs.yml"))
    page = hooks["on_page_markdown"]((ROOT / "docs" / "configuration.md").read_text(encoding="utf-8"), config=config)
    page = page.replace("<wbr>", "")
    rows = dict(re.findall(r"^\| <code>([\w.]+)</code> \| (.*) \|$", page, re.MULTILINE))
    assert list(rows) == list(SCHEMA)
    assert rows["model.batch_size"] == "int >= 1 | required | examples per step, over all towers"
    assert rows["model.optimizer.lion.beta_1"].startswith("float | `0.9` | ")
    assert "config keys:" not in page


def test_quickstart_runs(scratch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pyplot, "show", lambda: None)
    cells = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {"__name__": "quickstart"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert names["trainer"].monitors.latest("vld/accuracy") > 0.95
    assert "outer ring? [False  True]" in capsys.readouterr().out


def printed(cell: dict[str, Any]) -> str:
    return "".join(output.get("text", "") for output in cell.get("outputs", []))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")  # inside Jupyter
def test_interrupt_and_continue(tmp_path: Path) -> None:
    cells = {cell.id: cell for cell in execute(ROOT / "docs" / "notebook.ipynb", tmp_path).cells}
    assert "SIGINT: stopping after this step and saving" in printed(cells["train"])
    assert "stopped by hand" in printed(cells["train"]) and "steps/s" in str(cells["train"].outputs)
    stopped = re.search(r"stopped after step (\d+)", printed(cells["between"]))
    assert stopped and f"continues from step {stopped[1]}" in printed(cells["continue"])
    assert "has not improved in 4 measurements" in printed(cells["continue"])
    assert any("image/png" in output.get("data", {}) for output in cells["curves"].outputs)
