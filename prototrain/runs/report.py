"""A self-contained HTML page about one or several runs. The page includes uPlot, which draws the charts."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from prototrain.config.values import as_text
from prototrain.experiment import Experiment
from prototrain.experiment.record import Attempt, Outcome
from prototrain.runs import Run, flat, short_names
from prototrain.runs.curves import PLAIN, Curve, Look, charts, choose_scalars, log_scale
from prototrain.system.terminal import format_duration, format_number

_LOG_LINES = 100
_ENVIRONMENT = ("directory", "host", "platform", "git_commit", "versions", "devices", "trainer", "model", "towers")
_ASSETS = files("prototrain.runs") / "page"
_HINT = "<p>Drag over a chart to zoom in, double-click to zoom out; click a name to hide its curve.</p>"
_PAGE = Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src $hashes">
<meta name="viewport" content="width=device-width">
<title>$title</title>
<style>
$style
</style>
</head>
<body>
<h1>$title</h1>
$sections
<footer>written $now from $directory</footer>
$scripts
</body>
</html>
""")


def write_page(runs: Sequence[Run], *, scalars: Sequence[str] | None = None, look: Look = PLAIN) -> str:
    """Return the HTML page about some runs with different names, with curves of all scalars or of some patterns.

    Raises:
        ExperimentError: there is no such scalar.
        OSError: a file cannot be read.
    """
    if len(runs) > 1:
        runs = [replace(run, name=name) for run, name in zip(runs, short_names(runs), strict=True)]
    places, data = _curves(runs, scalars, look)
    drawing = _asset("uPlot.iife.min.js", "draw.js")
    sections = {
        "": _summary(runs),
        "Curves": places and places + _HINT,
        "Scalars": _scalars(runs),
        "Config": _config(runs),
    }
    for run in runs:
        parts = {
            "Time": _time(run),
            "Environment": _environment(run),
            "Log": _log(Experiment(run.directory).log),
        }
        before = f"{run.name}: " if len(runs) > 1 else ""
        sections |= {before + name: text for name, text in parts.items()}
    scripts = f'<script type="application/json" id="curves">{data}</script>\n<script>{drawing}</script>'
    digest = base64.b64encode(hashlib.sha256(drawing.encode()).digest()).decode()
    return _PAGE.substitute(
        hashes=f"'sha256-{digest}'" if places else "'none'",
        title=html.escape(", ".join(run.name if len(runs) > 1 else run.directory.resolve().name for run in runs)),
        style=_asset("uPlot.min.css", "page.css"),
        sections="\n".join(
            (f"<h2>{html.escape(name)}</h2>\n" if name else "") + text for name, text in sections.items() if text
        ),
        scripts=scripts if places else "",
        now=_moment(time.time()),
        directory=html.escape(", ".join(str(run.directory.resolve()) for run in runs)),
    )


def _asset(*names: str) -> str:
    return "\n".join((_ASSETS / name).read_text(encoding="utf-8") for name in names)


def _summary(runs: Sequence[Run]) -> str:
    facts: dict[str, Callable[[Run], Any]] = {
        "state": lambda run: run.ending,
        "steps": lambda run: run.steps,
        "best": _best,
        "command": lambda run: command_of(run.environment),
        "changed": lambda run: " ".join(f"{key}={as_text(value)}" for key, value, _ in run.changes or ()) or None,
        "started": lambda run: None if run.started is None else _moment(run.started),
        "time": lambda run: format_duration(run.seconds),
        "newest checkpoint": lambda run: run.checkpoint,
        "started again": lambda run: sum(attempt.cause is not None for attempt in run.attempts) or None,
    }
    rows = [[name, *map(fact, runs)] for name, fact in facts.items()]
    shown = [row for row in rows if any(cell is not None for cell in row[1:])]
    return html_table(shown, ["", *(run.name for run in runs)] if len(runs) > 1 else ())


def _best(run: Run) -> str | None:
    """Return the lowest validation loss, or else the lowest training loss, and its step."""
    name = next((name for name in ("vld/loss", "trn/loss") if name in run.ranges), None)
    if name is None:
        return None
    value, step = run.ranges[name].lowest
    return f"{name} {format_number(value)} at step {step}"


def command_of(environment: dict[str, Any]) -> str | None:
    """Return the command line of a run as the user typed it."""
    words = environment.get("command")
    if not isinstance(words, list) or not words:
        return None
    first, *rest = map(str, words)
    is_own = Path(first).name in ("prototrain", "__main__.py", "cli.py")
    return shlex.join(["prototrain" if is_own else first, *rest])


def _curves(runs: Sequence[Run], scalars: Sequence[str] | None, look: Look) -> tuple[str, str]:
    """Return the HTML elements of the charts, and the curves as JSON."""
    having = [run for run in runs if run.ranges]
    if not having:
        return "", ""
    found = charts(runs, choose_scalars(having, ["*"] if scalars is None else scalars), look)
    drawn: list[dict[str, Any]] = []
    for title, curves in found.items():
        shown = [_in_json(curve, look) for curve in curves]
        is_log, note = log_scale(curves, look)
        drawn.append({"id": f"chart-{len(drawn)}", "title": title + note, "log": is_log, "lines": shown})
    places = "".join(f'<div id="{chart["id"]}"></div>' for chart in drawn)
    data = json.dumps({"charts": drawn}).replace("<", "\\u003c")
    return f'<div class="charts">{places}</div>', data


def _in_json(curve: Curve, look: Look) -> dict[str, Any]:
    ys = [y if math.isfinite(y) and (y > 0 or not look.log) else None for y in curve.ys]
    style = {"label": curve.label, "color": curve.color, "dash": curve.dash, "pale": curve.pale}
    return {**style, "x": curve.xs, "y": ys}


def _scalars(runs: Sequence[Run]) -> str:
    rows = [
        [
            name,
            *([run.name] if len(runs) > 1 else []),
            format_number(run.ranges[name].last),
            *(
                f"{format_number(value)} at {step}"
                for value, step in (run.ranges[name].lowest, run.ranges[name].highest)
            ),
        ]
        for name in dict.fromkeys(name for run in runs for name in run.ranges)
        for run in runs
        if name in run.ranges
    ]
    headers = ["scalar", *(["run"] if len(runs) > 1 else []), "last", "lowest, at step", "highest, at step"]
    return html_table(rows, headers)


def _config(runs: Sequence[Run]) -> str:
    """Return the config of a run with the defaults that it changed, or the configs of several runs side by side."""
    keys = dict.fromkeys(key for run in runs for key in run.config)
    rows = [[key, *(as_text(run.config[key]) if key in run.config else "" for run in runs)] for key in keys]
    if len(runs) > 1:
        return html_table(rows, ["key", *(run.name for run in runs)])
    defaults = {key: as_text(default) for key, _, default in runs[0].changes or []}
    return html_table([[*row, defaults.get(row[0], "")] for row in rows], ["key", "value", "default"])


def _environment(run: Run) -> str:
    """Return the main entries of environment.json, without digests, the data pipeline and optimizer options."""
    chosen = {key: run.environment[key] for key in _ENVIRONMENT if run.environment.get(key) is not None}
    return html_table([[key, as_text(value)] for key, value in flat(chosen).items()])


def _time(run: Run) -> str:
    headers = ["started", "start", "steps", "time", "steps/s", "end", "workers", "started again because"]
    several = any(attempt.workers is not None for attempt in run.attempts)
    columns = len(headers) if several else -2
    return html_table([_row_of(attempt)[:columns] for attempt in run.attempts], headers[:columns])


def _row_of(attempt: Attempt) -> list[Any]:
    speed = steps = None
    if attempt.first_step is not None and attempt.step is not None:
        steps = f"{attempt.first_step} to {attempt.step}"
        speed = format_number((attempt.step - attempt.first_step) / attempt.seconds) if attempt.seconds else None
    taken = None if attempt.seconds is None else format_duration(attempt.seconds)
    end = str(Outcome(attempt.state, attempt.reason))
    return [_moment(attempt.started), attempt.start, steps, taken, speed, end, attempt.workers, attempt.cause]


def html_table(rows: Iterable[Sequence[Any]], headers: Sequence[str] = ()) -> str:
    """Return an HTML table, or nothing if there are no rows."""
    cells = [("td", ["" if cell is None else str(cell) for cell in row]) for row in rows]
    lines = [("th", headers), *cells] if headers and cells else cells
    text = "\n".join(
        f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in line)}</tr>" for tag, line in lines
    )
    return f'<div class="table">\n<table>\n{text}\n</table>\n</div>' if cells else ""


def _log(path: Path) -> str:
    if not path.exists():
        return ""
    count, last = 0, deque[str](maxlen=_LOG_LINES)
    with open(path, encoding="utf-8", errors="replace") as file:
        for count, line in enumerate(file, 1):  # noqa: B007 - read below
            last.append(line)
    title = f"The last {_LOG_LINES} of {count} lines" if count > _LOG_LINES else "All of it"
    text = html.escape("".join(last).removesuffix("\n"))
    return f"<details><summary>{title}</summary>\n<pre>{text}</pre>\n</details>"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
