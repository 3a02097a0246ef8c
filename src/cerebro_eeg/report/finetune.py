"""The report of a fine-tuning run: ``report.html`` with scores over seeds, confusion, calibration and subjects.

Test scores appear only after ``evaluate`` has made them.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.errors import ConfigError
from cerebro_eeg.files import write_text
from cerebro_eeg.progress import counted
from cerebro_eeg.report import figures
from cerebro_eeg.report.external import external_section
from cerebro_eeg.report.figures import BLUE, COLOURS, DARK, GREY, ORANGE, write_in_panel
from cerebro_eeg.report.page import (
    Tell,
    check_packages,
    facts,
    figure,
    folded,
    heading,
    page,
    paragraph,
    provenance,
    silent,
    subheading,
    table,
    telling,
)
from cerebro_eeg.runs.evaluate import score_by
from cerebro_eeg.runs.folder import RunFolder, history_words
from cerebro_eeg.runs.probe import one_for_all, seeds_that_differ
from cerebro_eeg.runs.rivals import WIN, Part, Rows, read_rivals, rival_notes, saved_words, verdict
from cerebro_eeg.runs.score_record import ScoreRecord, of_seeds, read_record, summarise
from cerebro_eeg.scores.predictions import Predictions, score
from cerebro_eeg.scores.tables import at_threshold_words, by_rule, event_words, positive_of, primary, shown, title
from cerebro_eeg.train.log import read_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Score = Mapping[str, Any]
"""The scores of one training, as ``test.json`` holds them."""
_HEAD = ("mean", "± over seeds", "95 % over subjects", "chance")
RESAMPLES = 300
"""Bootstrap draws of subjects for the intervals of validation; those of the test set come from evaluate."""
_NAMED = 40  # more subjects than this are drawn without their names


def report_finetune(folder: Path, *, tell: Tell = silent) -> Path:
    """Write the report of a fine-tuning run, with its test scores where evaluate has made them."""
    check_packages("matplotlib", "sklearn")
    run = RunFolder(folder)
    described = run.read()
    if "choices" not in described["settings"]:
        raise ConfigError(f"{folder} is one training of a run; give the folder of the run that it lies in")
    with telling(tell):
        write_text(run.report, _page(folder, described, tell))
    return run.report


def _page(folder: Path, run: Mapping[str, Any], tell: Tell) -> str:
    """Return the whole page."""
    settings = run["settings"]
    trainings = _trainings(folder, settings)
    task = settings["task"]
    having = [one for one in trainings if (one[0] / "validation.npz").exists()]
    validation = []
    for number, (path, fold, seed) in enumerate(having):
        tell("validation scores of trainings", number, len(having))
        validation.append(_validation_scores(path, fold, seed))
    record = read_record(folder)
    weights = next(
        (path / "model.safetensors" for path, _, _ in trainings if (path / "model.safetensors").exists()), None
    )
    parts = [
        paragraph(_summary(settings, len(trainings))),
        *([] if (line := one_for_all(settings)) is None else [paragraph(f"{line}.")]),
        *_seen_before(run),
        *_histories(trainings),
        *_beside_rivals(folder, settings["choices"]),
        *_test_section(record, seeds_that_differ(settings)),
        *external_section(folder),
        *_section("Validation", validation, chosen=True),
    ]
    lines = {f"{fold} seed {seed}".strip(): read_lines(path / "metrics.jsonl") for path, fold, seed in trainings}
    lines = {name: found for name, found in lines.items() if found}
    if lines:
        names = sorted({key for found in lines.values() for line in found for key in line if key[:11] == "validation_"})
        parts += [
            heading("Training"),
            figure(
                lambda canvas: figures.draw_curves(canvas, lines, [(name, "own") for name in names]),
                9,
                6,
                "Curves of loss, validation, learning rate and gradient norm over the steps",
            ),
        ]
    return page(f"Fine-tuning: {task['task']}", parts + provenance(run, weights))


def _summary(settings: Mapping[str, Any], count: int) -> str:
    task, choices = settings["task"], settings["choices"]
    how = "new weights"
    if settings["from"] is not None:
        how = "frozen, pre-trained weights (linear probe)" if choices["freeze"] else "pre-trained weights"
        if choices.get("lora") is not None:  # older releases had no adapters
            how += f" with adapters of rank {choices['lora']}{', after their probe' if choices.get('few') else ''}"
    folds = f" in each of {choices['folds']} folds" if choices["folds"] else ""
    seeds = counted(len(seeds_that_differ(settings)), "seed")
    return (
        f"{task['kind'].capitalize()} of {', '.join(task['names'])} in windows of {task['seconds']:g} s, from {how}; "
        f"{seeds}{folds}, {count} finished or begun. Data: {settings['store']['dataset']}. "
        f"Training, validation and test share no {settings['unit']}."
    )


def _seen_before(run: Mapping[str, Any]) -> list[str]:
    """Say whether the weights had learned from the test subjects; runs of older releases do not record it."""
    line = run.get("seen", {}).get("text", "whether the test subjects were pre-trained on was not recorded")
    return [paragraph(f"{line[0].upper()}{line[1:]}.")]


def _histories(trainings: Sequence[tuple[Path, str, int]]) -> list[str]:
    """Say of each training whose length was changed on the way how long it was until when."""
    found = []
    for path, fold, seed in trainings:
        if (path / "run.json").exists() and (words := history_words(RunFolder(path).read())) is not None:
            found.append(paragraph(f"{fold} seed {seed}: the {words}.".strip(), soft=True))
    return found


def _trainings(folder: Path, settings: Mapping[str, Any]) -> list[tuple[Path, str, int]]:
    """Return folder, fold and seed of each training that has begun."""
    count, seeds = settings["choices"]["folds"], seeds_that_differ(settings)
    folds = [""] if count is None else [f"fold-{number + 1}" for number in range(count)]
    found = [(folder / fold / f"seed-{seed}", fold, seed) for fold in folds for seed in seeds]
    return [one for one in found if one[0].is_dir()]


def _validation_scores(path: Path, fold: str, seed: int) -> Score:
    predictions, weights = Predictions.load(path / "validation.npz"), path / "model.safetensors"
    if weights.exists():
        scores = score_by(weights, predictions, RESAMPLES)
    else:  # it was killed after it wrote its predictions and before it wrote its weights
        scores = score(predictions, resamples=RESAMPLES).to_dict()
    return {"fold": fold, "seed": seed, "scores": json.loads(json.dumps(scores)), "events": None}


def _beside_rivals(folder: Path, choices: Mapping[str, Any]) -> list[str]:
    """Return the part of the page on rivals: the sentence on who wins, the differences as a picture and a table."""
    asked: tuple[Part, ...] = ("test", "validation")
    found = {part: rows for part in asked if (rows := read_rivals(folder, part))}
    parts = [heading("Beside simple features")] if found else []
    for part, rows in found.items():
        line = verdict(rows)
        title_of = f"Ours minus each rival, {title(rows[0]['metric'])} by window, {part} split"
        held_out = choices["freeze"] and choices["solver"] == "exact" and choices.get("readout") is not None
        flattered = part == "validation" and not held_out
        hint = "Our weights were chosen on these windows, which flatters them." if flattered else ""
        notes = [hint, *(f"{note[0].upper()}{note[1:]}." for note in rival_notes(rows))]
        parts += [
            subheading(f"{part.capitalize()}: {line}"),
            paragraph(
                f"{words[0].upper()}{words[1:]}."
                if part == "validation" and (words := saved_words(folder, rows, "my-run"))
                else ""
            ),
            figure(
                partial(draw_rivals, rows=rows),
                7,
                1.1 + 0.38 * len(rows),
                title_of,
                f"{title_of}; right of the line we are ahead. {_interval_words(rows)}",
                wide=False,
            ),
            table(
                ["", "rival", "ours", "ours - rival", "95 % over subjects"],
                [
                    [row["name"], shown(row["rival"]), shown(row["ours"]), f"{row['difference']:+.3f}", _between(row)]
                    for row in rows
                ],
            ),
            paragraph(" ".join(filter(None, notes)), soft=True),
        ]
    return parts


def _between(row: Mapping[str, Any]) -> str:
    return "n/a" if row["low"] is None else f"{row['low']:+.3f} to {row['high']:+.3f}"


def _interval_words(rows: Rows) -> str:
    if any(row["low"] is not None for row in rows):
        over = counted(rows[0]["subjects"], "subject")
        return f"Bars: 95 % over {over}. Blue: we win; orange: the rival wins; grey: neither."
    return "No interval: there are fewer than six subjects, or folds with a model of their own."


def _test_section(record: ScoreRecord | None, seeds: Sequence[int]) -> list[str]:
    if record is None:
        words = "The test set has not been scored. cerebro-eeg evaluate scores it, once."
        return [heading("Test"), paragraph(words, soft=True)]
    times = "once" if record.scorings == 1 else f"{record.scorings} times; the numbers are of the first time"
    first, last = (of_seeds(scores, seeds) for scores in (record.first, record.last))
    parts = _section("Test", first["trainings"], chosen=False, words=f"The test set was scored {times}.")
    if record.scorings > 1:
        parts.append(folded("The last scoring", _score_tables(last["trainings"])))
    return parts


def _section(name: str, scores: Sequence[Score], *, chosen: bool, words: str = "") -> list[str]:
    """Return all parts of the page about one split."""
    if not scores:
        return [heading(name), paragraph("No training has predictions for it.", soft=True)]
    first = scores[0]["scores"]
    summary = summarise(scores)
    metric = primary(first["kind"], first["names"])
    value = summary["levels"]["window"]["values"][metric]
    spread = "" if value["std"] is None else f" ± {value['std']:.3f}"
    numbers = [
        (f"{shown(value['mean'])}{spread}", f"{title(metric)} by window, the primary number"),
        (shown(value["chance"]), "chance"),
        (f"{first['windows']:,}", "windows"),
        (f"{first['subjects']:,}", "subjects"),
    ]
    positive = positive_of(first["kind"], first["names"])
    of_class = (
        "" if positive is None else f"Positive: {positive} (AUPR (positive class) and the threshold speak of it)."
    )
    hint = "Weights and threshold were chosen on these windows, so the numbers flatter." if chosen else ""
    parts = [
        heading(name),
        paragraph(f"{words} {of_class} {hint}".strip(), soft=True),
        facts(numbers),
        _score_tables(scores),
    ]
    parts += [paragraph(f"Note: {note}.", soft=True) for note in summary["notes"]]
    if first["confusion"] is not None:
        counts = _confusions(scores)
        size = 1.6 + 0.85 * len(first["names"])
        parts += [
            subheading("Confusion"),
            figure(
                lambda canvas: draw_confusions(canvas, counts, first["names"]),
                (size + 0.8) * len(counts),
                size,
                f"True against predicted class: {'; '.join(counts)}".replace("\n", " "),
                "Of all trainings together; the share is of the true class.",
                wide=len(counts) > 1,
            ),
        ]
    if first["calibration"] is not None:
        lines = {_training_name(one): one["scores"]["calibration"] for one in scores}
        parts += [
            subheading("Calibration"),
            figure(
                lambda canvas: draw_calibration(canvas, lines),
                5,
                4.6,
                "Probabilities that the model says against the share that came true",
                wide=False,
            ),
        ]
    rows = [one["scores"]["by_subject"] for one in scores]
    by = _subject_metric(rows, metric)
    (rule,) = by_rule(first["kind"], first["names"], (by,))
    caption = f"{title(by)}{f', {rule}' if rule else ''}."
    parts += [
        subheading("Subjects"),
        figure(lambda canvas: draw_subjects(canvas, rows, by), 9, 3.6, "Score of each subject", caption),
        folded("All subjects, the mean of all trainings", _subject_table(rows)),
    ]
    return parts


def _confusions(scores: Sequence[Score]) -> dict[str, NDArray[np.int64]]:
    """Count classes over all trainings: by the most probable class, as in the paper, and as ``predict`` decides."""
    two = len(scores[0]["scores"]["names"]) == 2
    words = "windows, by the most probable class" + "\n(a threshold of 0.5)" * two
    found = {words: [one["scores"]["confusion"] for one in scores]}
    decided = [at["levels"] for one in scores if (at := one["scores"]["at_threshold"])]
    for name in ("window", "recording"):
        counts = [levels[name]["confusion"] for levels in decided if name in levels]
        if counts:
            found[f"{name}s, as predict decides,\nat the threshold chosen on validation"] = counts
    return {words: np.array(counts, np.int64).sum(0) for words, counts in found.items()}


def _training_name(one: Score) -> str:
    return f"{one['fold']} seed {one['seed']}".strip()


def _subject_metric(rows: Sequence[Sequence[Mapping[str, Any]]], first: str) -> str:
    """Return the measure that most subjects have; ``first`` wins a tie."""
    names = list(dict.fromkeys(name for training in rows for row in training for name in row["values"]))
    if not names:
        raise ConfigError("the scores name no measure for any subject; score again")
    having = {name: sum(row["values"].get(name) is not None for t in rows for row in t) for name in names}
    return max(names, key=lambda name: (having[name], name == first))


def _score_tables(scores: Sequence[Score]) -> str:
    """Return all scores, grouped by their decision rule: none, the most probable class, or the chosen threshold."""
    summary, first = summarise(scores), scores[0]["scores"]
    levels, parts = summary["levels"], []
    for rule, metrics in by_rule(first["kind"], first["names"], tuple(levels["window"]["values"])).items():
        parts += [subheading(f"{rule[0].upper()}{rule[1:]}")] if rule else []
        parts += [_level_table(f"by {name}", found, metrics) for name, found in levels.items()]
    if (decided := summary.get("at_threshold")) is not None:
        words = at_threshold_words(decided["thresholds"], decided["chosen_on"])
        parts.append(subheading(f"As predict decides, {words}"))
        parts += [
            _level_table(f"by {name}", found, tuple(found["values"]), False)
            for name, found in decided["levels"].items()
        ]
    if "events" in summary:
        words = event_words(scores)
        parts.append(subheading(f"{words[0].upper()}{words[1:]}"))
        rows = [_score_row(metric, of)[:-1] for metric, of in summary["events"].items()]
        parts.append(table(["over all recordings", *_HEAD[:-1]], rows))
    return "".join(parts)


def _level_table(name: str, found: Mapping[str, Any], metrics: Sequence[str], chance: bool = True) -> str:
    """Return the table of one level (windows, recordings or subjects), with a column for chance if there is one."""
    columns = None if chance else -1
    rows = [_score_row(metric, found["values"][metric])[:columns] for metric in metrics]
    return table([f"{name} ({max(found['count']):,})", *_HEAD[:columns]], rows)


def _score_row(metric: str, of: Mapping[str, float | None]) -> list[str]:
    between = "n/a" if of["low"] is None else f"{shown(of['low'])} to {shown(of['high'])}"
    return [title(metric).replace("_", " "), shown(of["mean"]), shown(of["std"]), between, shown(of["chance"])]


def _subject_table(rows: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    names = list(dict.fromkeys(name for training in rows for row in training for name in row["values"]))
    found: dict[str, list[Mapping[str, Any]]] = {}
    for training in rows:
        for row in training:
            found.setdefault(row["subject"], []).append(row)
    lines = []
    for subject, parts in sorted(found.items()):
        values = [[part["values"].get(name) for part in parts] for name in names]
        known = [[value for value in of if value is not None] for of in values]
        means = [shown(float(np.mean(of)) if of else None) for of in known]
        lines.append([subject, f"{parts[0]['recordings']:,}", f"{parts[0]['windows']:,}", *means])
    return table(["subject", "recordings", "windows", *(title(name).replace("_", " ") for name in names)], lines)


# Pictures


def draw_rivals(figure: "Figure", rows: Rows) -> None:
    """Draw ours minus each rival's score as a dot with its interval; colours tell who wins."""
    axes: Axes = figure.subplots()
    axes.axvline(0, color=GREY, linewidth=1)
    for place, row in enumerate(rows):
        above, below, at = row["above"], row["below"], len(rows) - 1 - place
        colour = GREY if above is None else BLUE if above >= WIN else ORANGE if below >= WIN else GREY
        if row["low"] is not None:
            axes.plot([row["low"], row["high"]], [at, at], color=colour, linewidth=2, solid_capstyle="round")
        axes.plot(row["difference"], at, "o", color=colour if above is not None else DARK, markersize=7)
    axes.set_yticks(range(len(rows)), [f"{row['name']}  {row['rival']:.3f}" for row in reversed(rows)])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"ours ({rows[0]['ours']:.3f}) minus rival, {title(rows[0]['metric'])}")


def draw_confusions(figure: "Figure", found: Mapping[str, NDArray[np.int64]], names: Sequence[str]) -> None:
    """Draw counts by true and predicted class, side by side under their titles."""
    for place, (title_of, counts) in enumerate(found.items()):
        axes: Axes = figure.add_subplot(1, len(found), place + 1)
        axes.set_title(title_of, fontsize=9)
        _draw_confusion(axes, counts, names)


def _draw_confusion(axes: "Axes", counts: NDArray[np.int64], names: Sequence[str]) -> None:
    """Draw one matrix of counts; the colour is the share of the true class."""
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    for row in range(len(names)):
        for column in range(len(names)):
            axes.text(
                column,
                row,
                f"{share[row, column]:.0%}\n{counts[row, column]:,}",
                ha="center",
                va="center",
                fontsize=9 if len(names) <= 6 else 6,
                color="white" if share[row, column] > 0.6 else DARK,
            )
    axes.set_xticks(range(len(names)), names, rotation=0 if len(names) <= 4 else 45)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def draw_calibration(figure: "Figure", found: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw predicted probability against observed share, one line per training; larger marks have more windows."""
    axes: Axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":", label="as said, so it is")
    for number, (name, calibration) in enumerate(found.items()):
        colour = COLOURS[number % len(COLOURS)]
        said, true, windows = (
            np.array([one[key] for one in calibration["bins"]]) for key in ("said", "true", "windows")
        )
        axes.plot(said, true, color=colour, linewidth=1, label=f"{name}: error {calibration['error']:.3f}")
        axes.scatter(said, true, s=8 + 120 * windows / max(windows.sum(), 1), color=colour, alpha=0.8)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_aspect("equal")
    axes.set_xlabel("probability that the model says")
    axes.set_ylabel("share that came true")
    axes.legend(frameon=False, fontsize=8)


def draw_subjects(figure: "Figure", rows: Sequence[Sequence[Mapping[str, Any]]], metric: str) -> None:
    """Draw a mark per subject and training, subjects sorted by mean; the line is the mean over subjects."""
    axes: Axes = figure.subplots()
    values: dict[str, list[float]] = {}
    for training in rows:
        for row in training:
            value = row["values"].get(metric)
            if value is not None:
                values.setdefault(row["subject"], []).append(value)
    if not values:
        write_in_panel(axes, "no subject has enough windows of each kind for this score")
        return
    means = {subject: float(np.mean(found)) for subject, found in values.items()}
    order = sorted(means, key=lambda subject: (means[subject], subject))
    for place, subject in enumerate(order):
        axes.plot([place] * len(values[subject]), values[subject], "o", color=BLUE, alpha=0.45, markersize=4)
    axes.plot(range(len(order)), [means[subject] for subject in order], "_", color=DARK, markersize=9)
    mean = float(np.mean(list(means.values())))
    axes.axhline(mean, color=ORANGE, linewidth=1.2, label=f"mean over {len(order):,} subjects {mean:.3f}")
    if len(order) <= _NAMED:
        axes.set_xticks(range(len(order)), order, rotation=90, fontsize=7)
    else:
        axes.set_xlabel("subjects, sorted")
    axes.set_ylabel(title(metric))
    axes.legend(frameon=False, fontsize=8)
