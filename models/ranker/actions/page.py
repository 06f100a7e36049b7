"""A self-contained HTML page of queries and their results."""

from __future__ import annotations

import base64
import html
from string import Template

import numpy as np

from prototrain.runs.report import html_table

from ..layouts import Picture
from ..pictures import thumbnail
from .outcome import Outcome

_RETRIEVED = 10  # pictures for each query
_SIDE = 96  # pixels of a picture, at most
_PAGE = Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>Retrieval</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 2rem auto; max-width: 76rem;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 0.6rem; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; font-size: 0.9rem; margin: 0.6rem 0; }
th, td { text-align: left; padding: 0.15rem 1.2rem 0.15rem 0; border-bottom: 1px solid #eee; }
.row { display: flex; gap: 0.4rem; overflow-x: auto; padding: 0.4rem 0; border-bottom: 1px solid #eee; }
figure { margin: 0; flex: none; width: 6.2rem; font-size: 0.7rem; line-height: 1.3; }
figure img { width: 5.4rem; height: 5.4rem; object-fit: contain; border: 4px solid #888; background: #f6f6f6; }
figure.query { margin-right: 1rem; }
figure.right img { border-color: #2a9d4a; }
figure.wrong img { border-color: #d1332e; border-style: dashed; }
figcaption { overflow-wrap: anywhere; color: #555; }
</style>
</head>
<body>
<h1>Retrieval</h1>
$facts
$table
<h2>Queries and what they retrieved</h2>
<p>Left the query, then what is most similar to it, best first: &#10003; with a green frame is the query's product,
&#10007; with a dashed red frame is another one. The number is the cosine similarity. $choice</p>
$rows
</body>
</html>
""")


def write_page(outcome: Outcome, facts: dict[str, str], *, shown: int) -> str:
    """The page.

    Args:
        outcome: the outcome of the search.
        facts: a description of the search, by name.
        shown: the number of queries to show; up to half of them have a wrong first result.
    """
    wrong, right = (np.flatnonzero(outcome.retrieved.right[:, 0] == value) for value in (False, True))
    of_wrong = _spread(wrong, max(shown // 2, shown - len(right)))
    chosen = [*of_wrong, *_spread(right, shown - len(of_wrong))]
    return _PAGE.substitute(
        facts=html_table(list(facts.items())),
        table=html_table(outcome.rounded(), outcome.headers),
        choice=f"The first {len(of_wrong)} queries are of the {len(wrong):,} whose first picture is wrong, "
        f"the other {len(chosen) - len(of_wrong)} of the {len(right):,} where it is right.",
        rows="\n".join(_row(outcome, number) for number in chosen),
    )


def _row(outcome: Outcome, number: int) -> str:
    query = outcome.catalogue[number]
    figures = [_figure(outcome, query, "query", "query")]
    for picture, similarity, right in outcome.retrieved_for(number, _RETRIEVED):
        mark = "&#10003;" if right else "&#10007;"
        figures.append(_figure(outcome, picture, "right" if right else "wrong", f"{mark} {similarity:.3f}"))
    return f'<div class="row">{"".join(figures)}</div>'


def _figure(outcome: Outcome, picture: Picture, kind: str, text: str) -> str:
    data = base64.b64encode(thumbnail(outcome.directory, picture, _SIDE)).decode()
    path, where = html.escape(picture.path), html.escape(f"{picture.category} {picture.product}")
    image = f'<img src="data:image/jpeg;base64,{data}" alt="{path}" title="{path}">'
    return f'<figure class="{kind}">{image}<figcaption>{text}<br>{where}</figcaption></figure>'


def _spread(numbers: np.ndarray, count: int) -> list[int]:
    """Return at most `count` items at equal distances."""
    places = np.linspace(0, len(numbers) - 1, min(count, len(numbers))).round().astype(int)
    return numbers[places].tolist()
