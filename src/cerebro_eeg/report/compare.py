"""The report of a comparison: ``report.html`` with who wins, the means over tasks, and a picture and table per task."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cerebro_eeg.errors import ConfigError
from cerebro_eeg.files import parse_json, write_text
from cerebro_eeg.progress import counted
from cerebro_eeg.report.again import again_compare
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
    to_do_again,
    verdict_box,
)
from cerebro_eeg.report.score_pictures import MOST_CURVES, draw_roc
from cerebro_eeg.report.verdicts import Verdict, of_comparison, of_task
from cerebro_eeg.runs.compare import method_folder
from cerebro_eeg.runs.compare_result import (
    TITLES,
    chosen_words,
    difference_words,
    estimate_words,
    names_of,
    overall_sentence,
)
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.scores.paired import FEWEST
from cerebro_eeg.scores.predictions import Predictions
from cerebro_eeg.scores.roc import curve

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
        write_text(path, _page(folder, RunFolder(folder).read(), tables, overall, notes, tell))
    return path


def _page(
    folder: Path,
    run: Mapping[str, Any],
    tables: Sequence[Mapping[str, Any]],
    overall: Mapping[str, Any],
    notes: Sequence[str],
    tell: Tell,
) -> str:
    """Return the whole page."""
    verdicts = [(one["task"], of_task(one, TITLES[one["metric"]])) for one in tables]
    headline = of_comparison(verdicts, overall["means"], _best_simple(tables, overall["means"]))
    sentence = overall_sentence(overall)
    if len(tables) > 1:
        headline = replace(headline, below=(*headline.below, f"{sentence[0].upper()}{sentence[1:]}."))
    parts = [verdict_box(headline), *_overall(tables, overall, headline)]
    for number, (one, (_, verdict)) in enumerate(zip(tables, verdicts, strict=True)):
        tell("tasks", number, len(tables))
        parts += _task(folder, one, verdict if len(tables) > 1 else None)
    parts += [heading("Notes"), *(paragraph(f"{note}.", soft=True) for note in notes)] if notes else []
    parts += [heading("How to read this"), *(paragraph(words) for words in _READING)]
    parts += [
        heading("Where it comes from"),
        table([], [["data set", run["settings"]["store"]["dataset"]], ["store", run["settings"]["store"]["sha256"]]]),
        *to_do_again(again_compare(run, tables)),
        subheading("Versions"),
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


def _best_simple(tables: Sequence[Mapping[str, Any]], means: Mapping[str, Any]) -> str | None:
    """Return the simple rival that cross-validation prefers over all tasks with classes."""
    simple = [row["name"] for row in tables[0]["rows"] if row["family"] == "simple" and row["name"] in means]
    return max(simple, key=lambda name: means[name]["cv"], default=None)


def _overall(tables: Sequence[Mapping[str, Any]], overall: Mapping[str, Any], headline: Verdict) -> list[str]:
    """Return the means over tasks, as boxes and a table of every task."""
    means, parts = overall["means"], []
    if "default" in means and headline.carries:
        on = "cv" if means["default"]["test"] is None else "test"
        where = {"cv": "cross-validated", "test": "on test"}[on]
        mean = "mean AUROC over tasks" if len(tables) > 1 else "AUROC"
        numbers = [(_number(means["default"][on]), f"our default {where}, {mean} (higher is better)")]
        if (best := _best_simple(tables, means)) is not None:
            numbers.append((_number(means[best][on]), f"the best simple rival by cross-validation, {best}"))
        if overall["judged"] and len(tables) > 1:
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
            mean_of = means.get(name, {})
            rows.append([name, _number(mean_of.get("cv")), _number(mean_of.get("test")), *cells])
        head = ["", "mean, cross-validated", "mean, test", *(f"{one['task']}, test" for one in tables)]
        parts += [heading("All tasks"), table(head, rows)]
    return parts


def _cell(one: Mapping[str, Any], name: str) -> str:
    found = next((row for row in one["rows"] if row["name"] == name), None)
    return "" if found is None or found["test"] is None else _number(found["test"]["value"])


def _task(folder: Path, one: Mapping[str, Any], verdict: Verdict | None) -> list[str]:
    """Return the parts of the page about a task."""
    known, test = one["known"], one["test"]
    words = f"{counted(known['windows'], 'window')} of {counted(known['subjects'], 'subject')} to learn from"
    words += "" if test is None else f", {counted(test['windows'], 'window')} of {counted(test['subjects'], 'subject')}"
    words += "" if test is None else " to test"
    rows = [row for row in one["rows"] if row["name"] == "default"]
    chosen = f" Cross-validation chose: {chosen_words(rows[0])}." if rows else ""
    levels = [name for name in ("recording", "subject") if any(name in _levels(row) for row in one["rows"])]
    head = ["", "cross-validated", "test", "default minus it", *(f"test by {name}" for name in levels), "settings"]
    lines = [_line(row, one["metric"], levels) for row in one["rows"]]
    size = 0.6 + 0.27 * len(one["rows"])
    parts = [
        heading(f"{one['task']}: {', '.join(one['names'])}"),
        *([] if verdict is None else [verdict_box(verdict, small=True)]),
        paragraph(f"{words}. {TITLES[one['metric']]} by window.{chosen}", soft=True),
        figure(
            lambda canvas: draw_rows(canvas, one),
            9,
            max(2.2, size),
            f"Scores of every method on {one['task']} with intervals, and differences from our default",
        ),
        table(head, lines),
        *_roc(folder, one),
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


def _line(row: Mapping[str, Any], metric: str, levels: Sequence[str]) -> list[str]:
    return [
        row["name"],
        estimate_words(row["cv"]),
        estimate_words(row["test"]),
        difference_words(row["minus"]["test"] or row["minus"]["cv"]),
        *(_number(_levels(row).get(name, {}).get(metric)) for name in levels),
        str(row["settings"] or ""),
    ]


def _levels(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the test scores by recording and subject; none without a test split."""
    found: Mapping[str, Any] = {} if row["test"] is None else row["test"]["levels"]
    return found


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _roc(folder: Path, one: Mapping[str, Any]) -> list[str]:
    """Return ROC curves of our default, the best simple rival and the best control, from the answers that are kept."""
    rows = {row["name"]: row for row in one["rows"]}
    on = "test" if one["test"] is not None else "cv"
    enough = (one["test"] or one["known"])["subjects"] >= FEWEST and len(one["names"]) <= MOST_CURVES
    if one["kind"] != "classification" or not enough or "default" not in rows:
        return []
    controls = [row for row in one["rows"] if row["family"] == "control"]
    control = max(controls, key=lambda row: row["cv"]["value"], default=None)
    drawn = ["default", *filter(None, [one["best_simple"], None if control is None else control["name"]])]
    kept = {name: _answers(folder, one["task"], rows[name], on) for name in drawn}
    two, panels = len(one["names"]) == 2, {}
    for place in [1] if two else range(len(one["names"])):
        lines = []
        for name in drawn:
            found = curve(kept[name], place, resamples=200 if name == "default" else 1) if kept[name] else None
            if found is not None:
                value = f", AUROC {rows[name][on]['value']:.3f}" if two and rows[name][on] is not None else ""
                lines.append((f"{'our default' if name == 'default' else name}{value}", found))
        if lines:
            panels[f"Finding {one['names'][place]}" if two else f"{one['names'][place]} against the rest"] = lines
    if not panels:
        return []
    columns = min(4, len(panels))
    where = {"test": "Test split", "cv": "Cross-validated"}[on]
    return [
        subheading("ROC curve" if two else "ROC curves"),
        figure(
            lambda canvas: draw_roc(canvas, panels),
            5 if two else 2.6 * columns,
            4.6 if two else 2.75 * -(-len(panels) // 4),
            f"Share that is found against the share of false alarms on {one['task']}: {'; '.join(panels)}",
            f"{where}. The nearer a curve is to the upper left corner, the better. Band: 95 % over subjects.",
            wide=not two,
        ),
    ]


def _answers(folder: Path, task: str, row: Mapping[str, Any], on: str) -> list[Predictions]:
    """Return the kept predictions of a method for a task; nothing if a file is missing."""
    place = method_folder(folder, task, row["name"])
    names = [f"test-{seed}.npz" for seed in range(row["seeds"])] if on == "test" else ["cv.npz"]
    if not names or not all((place / name).exists() for name in names):
        return []
    return [Predictions.load(place / name) for name in names]


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
        if minus is not None and row["family"] != "chance":  # so far away that nothing else could be told apart
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
