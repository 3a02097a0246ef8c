"""Page: one HTML file that needs nothing but itself: pictures inside it, no scripts, no address that it loads from.

Everything that is put on it as text is escaped here, whoever wrote it.
"""

import base64
import html
import importlib.util
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cerebro_eeg.errors import ConfigError
from cerebro_eeg.report.picture import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root { color-scheme: light; --ink: #222; --soft: #667; --line: #dde; --paper: #fff; --wash: #f6f7f9; --blue: #0072B2; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 1rem 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; padding-top: .6rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .3rem; }
p { margin: .4rem 0; max-width: 46rem; }
.soft, figcaption, summary { color: var(--soft); font-size: .9rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .6rem; margin: 1rem 0; }
.facts div { background: var(--wash); border-left: 3px solid var(--blue); padding: .5rem .7rem; }
.facts b { display: block; font-size: 1.25rem; }
.facts span { color: var(--soft); font-size: .85rem; }
figure { margin: 1rem 0; overflow-x: auto; }
figure img { display: block; width: 100%; height: auto; }
figure img.wide { min-width: 36rem; }
figure img.narrow { max-width: 34rem; }
.table { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem .3rem 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td.best { font-weight: 600; }
pre { background: var(--wash); padding: .7rem; overflow-x: auto; font-size: .8rem; line-height: 1.4; }
summary { cursor: pointer; padding: .3rem 0; }
@media print { figure, .table, .facts { break-inside: avoid; } }
"""
# Even a slip could then load nothing.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def check_packages(*needed: str) -> None:
    """Refuse before any work is done for a page that cannot be drawn here."""
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"a report needs {' and '.join(missing)}, which is not installed here; install it, and ask again"
        )


def page(title: str, parts: Sequence[str]) -> str:
    """The whole file; the parts are HTML that the functions below made."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


def escape(text: object) -> str:
    """Text as it is, whatever it holds."""
    return html.escape(str(text), quote=True)


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def subheading(text: str) -> str:
    return f"<h3>{escape(text)}</h3>"


def paragraph(text: str, soft: bool = False) -> str:
    kind = ' class="soft"' if soft else ""
    return f"<p{kind}>{escape(text)}</p>"


def facts(found: Sequence[tuple[str, str]]) -> str:
    """Numbers to see first, each with what it is."""
    inside = "".join(f"<div><b>{escape(number)}</b><span>{escape(words)}</span></div>" for number, words in found)
    return f'<div class="facts">{inside}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], best: Sequence[int | None] = ()) -> str:
    """Cells of text, under a head or none; ``best`` is the column to stress in each row, if any."""
    marks = list(best) or [None] * len(rows)
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"] if head else []
    for row, mark in zip(rows, marks, strict=True):
        cells = [_cell(cell, place == mark) for place, cell in enumerate(row)]
        lines.append("<tr>" + "".join(cells) + "</tr>")
    return '<div class="table"><table>' + "\n".join(lines) + "</table></div>"


def _cell(text: str, best: bool) -> str:
    return f'<td class="best">{escape(text)}</td>' if best else f"<td>{escape(text)}</td>"


def folded(title: str, inside: str) -> str:
    """What few will read, one click away."""
    return f"<details><summary>{escape(title)}</summary>{inside}</details>"


def preformatted(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def figure(
    draw: Callable[["Figure"], None], width: float, height: float, words: str, caption: str = "", wide: bool = True
) -> str:
    """A drawing (inches) as an image inside the page; ``words`` say what it shows to whom cannot see it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "picture.svg")
        with drawing(path, width, height) as canvas:
            draw(canvas)
        data = base64.b64encode(_slim(path.read_bytes())).decode("ascii")
    kind = "wide" if wide else "narrow"
    image = f'<img class="{kind}" alt="{escape(words)}" src="data:image/svg+xml;base64,{data}">'
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{image}{below}</figure>"


def _slim(svg: bytes) -> bytes:
    """Without the lines that name other files, and with coordinates no finer than a screen shows."""
    svg = re.sub(rb"<metadata>.*?</metadata>", b"", svg[svg.index(b"<svg") :], flags=re.DOTALL)
    return re.sub(rb' d="[^"]*"', lambda path: re.sub(rb"(\.\d\d)\d+", rb"\1", path[0]), svg)
