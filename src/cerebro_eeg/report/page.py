"""Page: one HTML file that needs nothing but itself: pictures inside it, no scripts, no address that it loads from.

All text is escaped here, whatever its origin. The last part of every report, ``provenance``, is here as well: data,
settings, versions, and the commands that repeat the run.
"""

import base64
import contextlib
import html
import importlib.util
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cerebro_eeg.config import Training
from cerebro_eeg.errors import CheckpointError, ConfigError
from cerebro_eeg.model.checkpoint import read_header
from cerebro_eeg.report.again import Again
from cerebro_eeg.report.figures import drawing
from cerebro_eeg.report.verdicts import Verdict
from cerebro_eeg.terminal import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root { color-scheme: light dark; --ink: #222; --soft: #5b6170; --line: #dde; --paper: #fff; --wash: #f6f7f9;
  --blue: #0072B2; --orange: #B84A00; --grey: #777; --sheet: #fff; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6e6ea; --soft: #a9afbd; --line: #3a3f4b; --paper: #16181d; --wash: #20242c; --blue: #56B4E9;
    --orange: #F0A35E; --grey: #999; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.05rem; font-weight: 600; line-height: 1.3; margin: .6rem 0 .6rem; color: var(--soft); }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; padding-top: .6rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .3rem; }
p { margin: .4rem 0; max-width: 46rem; }
.soft, figcaption, summary { color: var(--soft); font-size: .9rem; }
.verdict { border-left: 6px solid var(--grey); background: var(--wash); padding: .7rem 1rem .8rem;
  margin: .4rem 0 1rem; }
.verdict.wins { border-color: var(--blue); }
.verdict.loses { border-color: var(--orange); }
.verdict p { max-width: none; }
.verdict .sentence { font-size: 1.45rem; font-weight: 600; line-height: 1.3; margin: 0 0 .4rem; }
.verdict.small .sentence { font-size: 1.05rem; }
.warning { border-left: 3px solid var(--orange); padding-left: .6rem; }
.warning b { color: var(--orange); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .6rem; margin: 1rem 0; }
.facts div { background: var(--wash); border-left: 3px solid var(--blue); padding: .5rem .7rem; }
.facts b { display: block; font-size: 1.25rem; }
.facts span { color: var(--soft); font-size: .85rem; }
figure { margin: 1rem 0; overflow-x: auto; }
figure img { display: block; width: 100%; height: auto; background: var(--sheet); border-radius: 3px; }
figure img.wide { min-width: 36rem; }
figure img.narrow { max-width: 34rem; }
.table { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { white-space: normal; max-width: 9rem; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
td.best { font-weight: 600; }
td[title] { text-decoration: underline dotted var(--grey); text-underline-offset: .2em; cursor: help; }
pre { background: var(--wash); padding: .7rem; overflow-x: auto; font-size: .8rem; line-height: 1.4; }
pre.command { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; }
summary { cursor: pointer; padding: .3rem 0; }
@media (max-width: 40rem) { .verdict .sentence { font-size: 1.25rem; } .facts b { font-size: 1.1rem; } }
@media print { figure, .table, .facts, .verdict { break-inside: avoid; } h2, h3 { break-after: avoid; }
  figure img.wide { min-width: 0; } .table, figure { overflow: visible; } th, td { white-space: normal; } }
"""
# With this policy the page can load nothing, even by mistake.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


Tell = Callable[[str, int, int], None]
"""Is called with the part of a report that is made next, and how much of how many is done; 0 of 0 if not counted."""


def silent(part: str, done: int, total: int) -> None:
    """Tell nothing."""


_tell: ContextVar[Tell] = ContextVar("tell", default=silent)


@contextlib.contextmanager
def telling(tell: Tell) -> Iterator[None]:
    """Have every figure of a page tell that it is drawn next, while the block lasts."""
    token = _tell.set(tell)
    try:
        yield
    finally:
        _tell.reset(token)


def check_packages(*needed: str) -> None:
    """Raise before any work is done if a package that the page needs is missing."""
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"a report needs {' and '.join(missing)}, which is not installed here; install it, and ask again"
        )


def page(title: str, parts: Sequence[str]) -> str:
    """Return the whole file; the parts are HTML made by the functions below."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


def escape(text: object) -> str:
    """Return text as HTML that shows it unchanged; characters that are not seen become their codes."""
    return html.escape(visible(str(text)), quote=True)


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def subheading(text: str) -> str:
    return f"<h3>{escape(text)}</h3>"


def verdict_box(verdict: Verdict, small: bool = False) -> str:
    """Return the headline of a page: the sentence in the largest letters, what belongs to it, and warnings.

    A ``small`` one is the verdict of a part of the page.
    """
    warnings = "".join(f'<p class="warning"><b>Careful:</b> {escape(words)}</p>' for words in verdict.warnings)
    below = "".join(f"<p>{escape(words)}</p>" for words in verdict.below)
    sentence = f'<p class="sentence">{escape(verdict.sentence)}</p>'
    return f'<div class="verdict {verdict.state}{" small" if small else ""}">{sentence}{warnings}{below}</div>'


def paragraph(text: str, soft: bool = False) -> str:
    kind = ' class="soft"' if soft else ""
    return f"<p{kind}>{escape(text)}</p>"


def facts(found: Sequence[tuple[str, str]]) -> str:
    """Return the most important numbers as boxes, each with its words."""
    inside = "".join(f"<div><b>{escape(number)}</b><span>{escape(words)}</span></div>" for number, words in found)
    return f'<div class="facts">{inside}</div>'


class Hint(NamedTuple):
    """A cell with a longer form, which a reader sees by pointing at it."""

    text: str
    whole: str


Cell = str | Hint
NOTHING = ("", "n/a")


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]], best: Sequence[int | None] = ()) -> str:
    """Return a table of text; ``head`` may be empty, and ``best`` is the column to stress in each row, if any.

    A column is left out if no row has anything in it.
    """
    width = max((len(row) for row in rows), default=len(head))
    kept = [at for at in range(width) if not at or not rows or any(_text(row[at]) not in NOTHING for row in rows)]
    marks = list(best) or [None] * len(rows)
    lines = ["<tr>" + "".join(f"<th>{escape(head[at])}</th>" for at in kept) + "</tr>"] if head else []
    for row, mark in zip(rows, marks, strict=True):
        lines.append("<tr>" + "".join(_cell(row[at], at == mark) for at in kept) + "</tr>")
    return '<div class="table"><table>' + "\n".join(lines) + "</table></div>"


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.text


def _cell(cell: Cell, best: bool) -> str:
    kind = ' class="best"' if best else ""
    title = "" if isinstance(cell, str) else f' title="{escape(cell.whole)}"'
    return f"<td{kind}{title}>{escape(_text(cell))}</td>"


_LONG = 12  # an id with more characters than this is shortened


def short_id(id: str) -> Cell:
    """Return an id as a cell: a long one by its first eight characters, with all of it as the hint."""
    return id if len(id) <= _LONG else Hint(f"{id[:8]}…", id)


def folded(title: str, inside: str) -> str:
    """Return HTML that shows its content only after a click."""
    return f"<details><summary>{escape(title)}</summary>{inside}</details>"


def preformatted(text: str, kind: str = "") -> str:
    return f'<pre class="{kind}">{escape(text)}</pre>' if kind else f"<pre>{escape(text)}</pre>"


def figure(
    draw: Callable[["Figure"], None], width: float, height: float, words: str, caption: str = "", wide: bool = True
) -> str:
    """Return a drawing (size in inches) as an image inside the page; ``words`` are its description as text."""
    _tell.get()(f"figure: {words[0].lower()}{words[1:]}", 0, 0)
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
    """Remove lines that name other files, and digits of coordinates that no screen shows."""
    svg = re.sub(rb"<metadata>.*?</metadata>", b"", svg[svg.index(b"<svg") :], flags=re.DOTALL)
    return re.sub(rb' d="[^"]*"', lambda path: re.sub(rb"(\.\d\d)\d+", rb"\1", path[0]), svg)


# Where a result comes from


def to_do_again(commands: Again) -> list[str]:
    """Return the part of a page with the commands that make the same once more."""
    return [subheading("To do it again"), preformatted("\n".join(commands.lines), "command"), paragraph(commands.note)]


def provenance(run: Mapping[str, Any], weights: Path | None, commands: Again) -> list[str]:
    """Return the last part of a report, from ``run.json`` and the training record of the weights."""
    settings = run["settings"]
    stores: Sequence[Mapping[str, str]] = settings.get("stores") or [settings["store"]]
    rows = [[str(store["dataset"]), str(store["sha256"])] for store in stores]
    parts = [
        heading("Where it comes from"),
        subheading("Data"),
        table(["data set", "SHA-256 of the store"], rows),
        *to_do_again(commands),
        folded("Model and hyper-parameters", preformatted(json.dumps(_config_parts(settings), indent=2))),
        subheading("Versions"),
        table([], [[str(name), str(version)] for name, version in run["versions"].items()]),
        folded("How it was carried out", preformatted(json.dumps(run["engine"], indent=2))),
        folded("run.json, all of it", preformatted(json.dumps(run, indent=2))),
    ]
    training = read_training(weights)
    return parts + (_training_record(training) if training is not None else [])


def _config_parts(settings: Mapping[str, Any]) -> dict[str, Any]:
    names = ("model", "objective", "pretrain", "finetune")
    return {name: settings[name] for name in names if settings.get(name) is not None}


def read_training(weights: Path | None) -> Training | None:
    """Return the training record of the weights; None if they are missing or of another release."""
    try:
        return None if weights is None else read_header(weights).training
    except CheckpointError:
        return None


def _training_record(training: Training) -> list[str]:
    data = [[one.name, f"{one.windows:,}", f"{one.hours:,.2f}", one.sha256] for one in training.data]
    electrodes = sorted(training.electrode_windows.items(), key=lambda item: (-item[1], item[0]))
    return [
        subheading("What the weights have seen"),
        paragraph(f"{training.steps:,} steps, {training.windows:,} windows, repetitions counted."),
        table(["data set", "windows", "hours", "SHA-256"], data) if data else "",
        folded(
            f"Windows of each of {len(electrodes):,} electrodes",
            table(["electrode", "windows"], [[name, f"{count:,}"] for name, count in electrodes]),
        ),
    ]
