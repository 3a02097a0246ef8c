"""The report of a comparison: ``report.html`` with who wins, the means over tasks, and a picture and table per task."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cerebro_eeg.errors import ConfigError
from cerebro_eeg.files import parse_json, write_text
from cerebro_eeg.progress import counted
from cerebro_eeg.report.figures import BLUE, DARK, GREEN, GREY, ORANGE, PURPLE
from cerebro_eeg.report.page import (
    Tell,
    check_packages,
    facts,
    figure,
    folded,
    heading,
    page,
    paragraph,
    preformatted,
    silent,
    subheading,
    table,
    telling,
)
from cerebro_eeg.runs.compare_result import (
    TITLES,
    chosen_words,
    difference_words,
    estimate_words,
    names_of,
    overall_sentence,
)
from cerebro_eeg.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOUR = {"chance": GREY, "simple": ORANGE, "net": PURPLE, "control": GREEN, "ours": BLUE}
_WORDS = {
    "simple": "simple features",
    "net": "small networks",
    "control": "controls: the same model without pre-training",
    "ours": "CEReBrO, pre-trained",
}


def report_compare(folder: Path, *, tell: Tell = silent) -> Path:
    """Write the page of a comparison from its ``compare.json``."""
    check_packages("matplotlib")
    try:
        found = parse_json((folder / "compare.json").read_text(encoding="utf-8"))
        tables, overall, notes = found["tables"], found["overall"], found["notes"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"compare.json of {folder} cannot be read; start the same compare command again") from error
    path = folder / "report.html"
    with telling(tell):
        write_text(path, _page(RunFolder(folder).read(), tables, overall, notes))
    return path


def _page(
    run: Mapping[str, Any], tables: Sequence[Mapping[str, Any]], overall: Mapping[str, Any], notes: Sequence[str]
) -> str:
    """Return the whole page."""
    sentence = overall_sentence(overall)
    parts = [paragraph(f"{sentence[0].upper()}{sentence[1:]}."), *_overall(tables, overall)]
    for one in tables:
        parts += _task(one)
    parts += [heading("Notes"), *(paragraph(f"{note}.", soft=True) for note in notes)] if notes else []
    parts += [heading("How to read this"), *(paragraph(words) for words in _READING)]
    parts += [
        heading("Where it comes from"),
        table([], [["data set", run["settings"]["store"]["dataset"]], ["store", run["settings"]["store"]["sha256"]]]),
        table([], [[str(name), str(version)] for name, version in run["versions"].items()]),
        folded("run.json, all of it", preformatted(json.dumps(run, indent=2))),
    ]
    return page("Comparison", parts)


_READING = (
    "Cross-validated: each window was answered by a model that had not seen its subject. The same division into folds "
    "chose the settings, so these scores flatter every method a little.",
    "Test: subjects whom nothing was chosen or fitted on. Every scoring is a line in test-log.jsonl.",
    "Intervals hold 95 % of the draws of subjects with replacement. With few subjects they are too narrow.",
    "Default minus it: the score of our default minus that of the row, on the same draws of subjects. A star marks "
    "differences whose sign nine of ten draws share.",
    "Centred per subject: the mean of a subject's windows was subtracted, without labels. Such a score uses all "
    "windows of a test subject at once.",
)


def _overall(tables: Sequence[Mapping[str, Any]], overall: Mapping[str, Any]) -> list[str]:
    """Return the means over tasks, as boxes, a picture and a table of every task."""
    means = overall["means"]
    parts = []
    if "default" in means:
        numbers = [(_number(means["default"]["test"]), "our default on test, mean AUROC over tasks")]
        simple = [row["name"] for row in tables[0]["rows"] if row["family"] == "simple" and row["name"] in means]
        if simple:
            best = max(simple, key=lambda name: means[name]["cv"])
            numbers.append((_number(means[best]["test"]), f"the best simple rival by cross-validation, {best}"))
        numbers += [
            (f"{overall['not_beaten']} of {overall['judged']}", "tasks where no simple rival beats it"),
            (f"{overall['wins']} of {overall['judged']}", "tasks where it beats all of them"),
        ]
        parts.append(facts(numbers))
    names = names_of(tables)
    if len(tables) > 1:
        rows = []
        for name in names:
            cells = [_cell(one, name) for one in tables]
            mean = means.get(name, {})
            rows.append([name, _number(mean.get("cv")), _number(mean.get("test")), *cells])
        head = ["", "mean, cross-validated", "mean, test", *(f"{one['task']}, test" for one in tables)]
        parts += [heading("All tasks"), table(head, rows, [None] * len(rows))]
    return parts


def _cell(one: Mapping[str, Any], name: str) -> str:
    found = next((row for row in one["rows"] if row["name"] == name), None)
    return "" if found is None or found["test"] is None else _number(found["test"]["value"])


def _task(one: Mapping[str, Any]) -> list[str]:
    """Return the parts of the page about a task."""
    known, test = one["known"], one["test"]
    words = f"{counted(known['windows'], 'window')} of {counted(known['subjects'], 'subject')} to learn from"
    words += "" if test is None else f", {counted(test['windows'], 'window')} of {counted(test['subjects'], 'subject')}"
    words += "" if test is None else " to test"
    rows = [row for row in one["rows"] if row["name"] == "default"]
    verdict = "" if one["verdict"] is None else f"{one['verdict']['text'][0].upper()}{one['verdict']['text'][1:]}."
    chosen = f" Cross-validation chose: {chosen_words(rows[0])}." if rows else ""
    head = ["", "cross-validated", "test", "± seeds", "by recording", "by subject", "default minus it", "settings", "s"]
    lines = [_line(row, one["metric"]) for row in one["rows"]]
    size = 0.6 + 0.27 * len(one["rows"])
    parts = [
        heading(f"{one['task']}: {', '.join(one['names'])}"),
        *([paragraph(verdict)] if verdict else []),
        paragraph(f"{words}. {TITLES[one['metric']]} by window.{chosen}", soft=True),
        figure(
            lambda canvas: draw_rows(canvas, one),
            9,
            max(2.2, size),
            f"Scores of every method on {one['task']} with intervals, and differences from our default",
        ),
        table(head, lines),
    ]
    listed = [row for row in one["rows"] if row["test"] is not None and "by_subject" in row["test"]]
    if listed:
        subjects = [f"subject {place + 1}" for place in range(len(listed[0]["test"]["by_subject"]))]
        cells = [[row["name"], *(_number(each["value"]) for each in row["test"]["by_subject"])] for row in listed]
        parts += [subheading("Test subjects, too few for an interval"), table(["", *subjects], cells)]
    settings = [
        [row["name"], row["about"], json.dumps(row["chosen"]), f"{row['temperature']:.2f}"] for row in one["rows"]
    ]
    return [*parts, folded("What was chosen", table(["", "what it is", "setting", "temperature"], settings))]


def _line(row: Mapping[str, Any], metric: str) -> list[str]:
    test, minus = row["test"], row["minus"]["test"] or row["minus"]["cv"]
    levels = {} if test is None else test["levels"]
    return [
        row["name"],
        estimate_words(row["cv"]),
        estimate_words(test),
        _number(None if test is None else test["std"]),
        _number(levels.get("recording", {}).get(metric)),
        _number(levels.get("subject", {}).get(metric)),
        difference_words(minus),
        str(row["settings"] or ""),
        f"{row['seconds']:.0f}",
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


# The picture


def draw_rows(figure: "Figure", one: Mapping[str, Any]) -> None:
    """Draw each method's score with its interval, and beside it our default's difference from it."""
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.2, 1))
    rows = list(one["rows"])
    for place, row in enumerate(reversed(rows)):
        colour = _COLOUR[row["family"]]
        for offset, key, marker in ((0.17, "cv", "o"), (-0.17, "test", "D")):
            _mark(left, row[key], "value", place + offset, colour, marker, key == "test")
        minus = row["minus"]["test"] or row["minus"]["cv"]
        if minus is not None:
            _mark(right, minus, "difference", place, colour, "D", True)
    left.set_yticks(range(len(rows)), [row["name"] for row in reversed(rows)])
    left.set_xlabel(f"{TITLES[one['metric']]}: circle cross-validated, diamond test")
    chance = next((row["cv"]["value"] for row in rows if row["family"] == "chance"), None)
    if chance is not None:
        left.axvline(chance, color=GREY, linewidth=1, linestyle=":")
    right.axvline(0, color=DARK, linewidth=0.8)
    right.set_xlabel("our default minus it: right of the line we are ahead")
    present = dict.fromkeys(row["family"] for row in rows if row["family"] in _WORDS)
    for family in present:
        left.plot([], [], "s", color=_COLOUR[family], label=_WORDS[family])
    figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=8)


def _mark(
    axes: "Axes", found: Mapping[str, Any] | None, key: str, place: float, colour: str, marker: str, filled: bool
) -> None:
    """Draw a number with its interval, if there is one."""
    if found is None:
        return
    if found["low"] is not None:
        axes.plot([found["low"], found["high"]], [place, place], color=colour, linewidth=1.2, alpha=0.7)
    axes.plot(found[key], place, marker, color=colour, markersize=4.5, markerfacecolor=colour if filled else "white")
