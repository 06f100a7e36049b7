"""One self-contained HTML page about a run, without scripts."""

from __future__ import annotations

import base64
import html
import re
import shlex
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from string import Template
from typing import Any

from tabulate import tabulate

from prototrain.config.values import as_text
from prototrain.experiment import Experiment
from prototrain.experiment.event_files import read_images
from prototrain.experiment.record import Attempt
from prototrain.runs import Run, flat
from prototrain.runs.curves import Look, by_tag, choose_scalars, draw, is_constant
from prototrain.system.wording import in_digits, in_words

_COLUMNS = 3  # of charts
_SHOWN_STEPS = 4  # of the steps that have pictures
_LOG_LINES = 100
_DUMPED = re.compile(r"(.+)-step-(\d{10,})-(\d+)\.png")
_PAGE = Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>$title</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 0.6rem; border-bottom: 1px solid #ccc; }
h3 { font-size: 1rem; margin: 1rem 0 0.2rem; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; }
th { white-space: nowrap; }
th, td { text-align: left; vertical-align: top; padding: 0.15rem 1.2rem 0.15rem 0; border-bottom: 1px solid #eee; }
td:first-child { white-space: nowrap; }
td { overflow-wrap: anywhere; white-space: pre-line; min-width: 4rem; }
img { max-width: 100%; }
figure { display: inline-block; margin: 0 1rem 0.6rem 0; }
figure img { min-height: 6rem; image-rendering: pixelated; margin-right: 0.3rem; }
figcaption, footer { color: #666; font-size: 0.85rem; }
pre { overflow-x: auto; background: #f6f6f6; padding: 0.8rem; font-size: 0.8rem; }
</style>
</head>
<body>
<h1>$title</h1>
$sections
<footer>written $now from $directory</footer>
</body>
</html>
""")


def write_page(
    run: Run,
    complain: Callable[[str], None] = print,
    *,
    scalars: Sequence[str] | None = None,
    look: Look | None = None,
) -> str:
    """Write the page.

    Args:
        run: the run.
        complain: called with a line about each damaged file, which is left out.
        scalars: names and patterns of the scalars to draw; None for all.
        look: of the curves.

    Returns:
        its content.

    Raises:
        ExperimentError: matplotlib is not installed and the run has scalars; or a link leads out of its directory.
        OSError: a file of the experiment cannot be read.
    """
    Experiment(run.directory).check_inside()
    sections = {
        "": _summary(run),
        "Curves": _curves(run, scalars, look or Look()),
        "Scalars": _scalars(run),
        "Images": _images(run, complain),
        "Config": _config(run),
        "Time": _time(run),
        "Environment": _environment(run),
        "Log": _log(Experiment(run.directory).log),
    }
    return _PAGE.substitute(
        title=html.escape(run.directory.resolve().name),
        sections="\n".join((f"<h2>{name}</h2>\n" if name else "") + text for name, text in sections.items() if text),
        now=_moment(time.time()),
        directory=html.escape(str(run.directory.resolve())),
    )


def _summary(run: Run) -> str:
    rows = [
        ("state", run.ending),
        ("steps", run.steps),
        ("started", None if run.started is None else _moment(run.started)),
        ("time", in_words(run.seconds)),
        ("newest checkpoint", run.checkpoint),
        ("started again", sum(attempt.cause is not None for attempt in run.attempts) or None),
    ]
    return _table([row for row in rows if row[1] is not None])


def _curves(run: Run, scalars: Sequence[str] | None, look: Look) -> str:
    """Small charts in rows, and the constant scalars in words."""
    names = list(run.ranges) if scalars is None else choose_scalars([run], scalars)
    charts = by_tag(names).values()
    level = [name for chart in charts if is_constant([run], chart) for name in chart]
    drawn = [name for name in names if name not in level]
    values = ", ".join(f"{name} = {in_digits(run.ranges[name].last)}" for name in level)
    words = f"<p>constant: {html.escape(values)}</p>" if level else ""
    if not drawn:
        return words
    return _picture(draw([run], drawn, "svg", look, columns=_COLUMNS), "svg+xml", ", ".join(drawn)) + words


def _scalars(run: Run) -> str:
    rows = [
        [
            name,
            in_digits(scalar.last),
            *(f"{in_digits(value)} at {step}" for value, step in (scalar.lowest, scalar.highest)),
        ]
        for name, scalar in run.ranges.items()
    ]
    return _table(rows, ["scalar", "last", "lowest, at step", "highest, at step"])


def _config(run: Run) -> str:
    defaults = {key: as_text(default) for key, _, default in run.changes or []}
    rows = [[key, as_text(value), defaults.get(key, "")] for key, value in run.config.items()]
    return _table(rows, ["key", "value", "default"])


def _environment(run: Run) -> str:
    entries = flat(run.environment)
    if isinstance(entries.get("command"), list):
        entries["command"] = shlex.join(map(str, entries["command"]))
    return _table([[key, as_text(value)] for key, value in entries.items()])


# -- time -------------------------------------------------------------------------------------------------------------


def _time(run: Run) -> str:
    headers = ["started", "start", "steps", "time", "steps/s", "end"]
    rows = [_row_of(attempt) for attempt in run.attempts]
    if any(attempt.workers is not None for attempt in run.attempts):
        headers += ["workers", "started again because"]
        rows = [[*row, one.workers, one.cause] for row, one in zip(rows, run.attempts, strict=True)]
    attempts = _table(rows, headers)
    ended = [attempt for attempt in run.attempts if attempt.seconds is not None]
    total = sum(attempt.seconds or 0.0 for attempt in ended)
    seconds: Counter[str] = Counter()
    for attempt in ended:
        seconds.update(attempt.callbacks)
        seconds.update({name: taken for name, taken in attempt.loop.items() if name != "waiting for input"})
    waiting = sum(attempt.loop.get("waiting for input", 0.0) for attempt in ended)
    if not total:
        return attempts
    shares = [*seconds.most_common(), ("everything else", max(total - sum(seconds.values()), 0.0))]
    shares.append(("waiting for input, a part of the steps", waiting))
    rows = [[name, f"{taken:.2f}", f"{taken / total:.1%}"] for name, taken in shares]
    return f"{attempts}\n<h3>Where the time went</h3>\n{_table(rows, ['', 'seconds', 'share'])}"


def _row_of(attempt: Attempt) -> list[Any]:
    speed = steps = None
    if attempt.first_step is not None and attempt.step is not None:
        steps = f"{attempt.first_step} to {attempt.step}"
        speed = in_digits((attempt.step - attempt.first_step) / attempt.seconds) if attempt.seconds else None
    taken = None if attempt.seconds is None else in_words(attempt.seconds)
    end = attempt.state if attempt.reason is None else f"{attempt.state}: {attempt.reason}"
    return [_moment(attempt.started), attempt.start, steps, taken, speed, end]


# -- images -----------------------------------------------------------------------------------------------------------


def _images(run: Run, complain: Callable[[str], None]) -> str:
    damage: list[str] = []
    of_summaries = read_images(Experiment(run.directory).summaries, damage.append)
    for line in damage:
        complain(line)
    found = {**_dumped(run.directory / "analysis" / "images"), **of_summaries}
    notes = [f"<p>{html.escape(line)}</p>" for line in damage]
    return "\n".join([*notes, *(_steps_of(name, by_step) for name, by_step in sorted(found.items()))])


def _dumped(directory: Path) -> dict[str, dict[int, list[bytes]]]:
    """The images of `DumpTensorAsImage`, by name and step."""
    matches = sorted(
        ((match[1], int(match[2]), int(match[3]), path) for path in directory.glob("*.png")
         if (match := _DUMPED.fullmatch(path.name))),
        key=lambda found: found[:3],
    )  # fmt: skip
    found: dict[str, dict[int, list[bytes]]] = {}
    for name, step, _, path in matches:
        found.setdefault(name, {}).setdefault(step, []).append(path.read_bytes())
    return found


def _steps_of(name: str, by_step: dict[int, list[bytes]]) -> str:
    steps = sorted(by_step)
    shown = _spread(steps, _SHOWN_STEPS)
    count = f" <small>({len(shown)} of {len(steps)} steps)</small>" if len(shown) < len(steps) else ""
    figures = [
        f"<figure>{''.join(_picture(image, 'png', f'{name}, step {step}') for image in by_step[step])}"
        f"<figcaption>step {step}</figcaption></figure>"
        for step in shown
    ]
    return f"<h3>{html.escape(name)}{count}</h3>\n" + "\n".join(figures)


def _spread(steps: Sequence[int], count: int) -> list[int]:
    """At most `count` of the steps, at even distances, with the first and the last."""
    if len(steps) <= count:
        return list(steps)
    return [steps[round(number * (len(steps) - 1) / (count - 1))] for number in range(count)]


# -- pieces of HTML ---------------------------------------------------------------------------------------------------


def _table(rows: Sequence[Sequence[Any]], headers: Iterable[str] = ()) -> str:
    if not rows:
        return ""
    # The format "html" escapes the cells.
    text = tabulate(rows, headers=list(headers), tablefmt="html", disable_numparse=True, missingval="")
    return f'<div class="table">\n{text}\n</div>'


def _picture(content: bytes, kind: str, description: str) -> str:
    data = base64.b64encode(content).decode()
    return f'<img src="data:image/{kind};base64,{data}" alt="{html.escape(description)}">'


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
