"""The report of a fine-tuning run: ``report.html`` begins with who wins, and has every score beside its rivals.

Test scores appear only after ``evaluate`` has made them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.errors import ConfigError
from cerebro_eeg.files import write_text
from cerebro_eeg.progress import counted
from cerebro_eeg.report import figures
from cerebro_eeg.report.again import again
from cerebro_eeg.report.external import external_section
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
    short_id,
    silent,
    subheading,
    table,
    telling,
    verdict_box,
)
from cerebro_eeg.report.score_pictures import (
    LEAST_CALIBRATION,
    LEAST_SUBJECTS,
    MOST_CURVES,
    draw_calibration,
    draw_confusions,
    draw_rivals,
    draw_roc,
    draw_subjects,
    subject_values,
)
from cerebro_eeg.report.verdicts import Found, Verdict, disagreement, not_tested, of_scores
from cerebro_eeg.runs.evaluate import score_by
from cerebro_eeg.runs.folder import RunFolder, history_words
from cerebro_eeg.runs.probe import one_for_all, seeds_that_differ
from cerebro_eeg.runs.rivals import (
    CHANCE,
    RANDOM,
    Part,
    Rows,
    best_simple,
    read_rivals,
    rival_notes,
    rival_outputs,
    saved_words,
)
from cerebro_eeg.runs.score_record import ScoreRecord, of_seeds, read_record, summarise
from cerebro_eeg.scores.predictions import Predictions, score
from cerebro_eeg.scores.roc import Curve, curve
from cerebro_eeg.scores.tables import at_threshold_words, by_rule, event_words, positive_of, primary, shown, title
from cerebro_eeg.train.log import read_lines

Score = Mapping[str, Any]
"""The scores of one training, as ``test.json`` holds them."""
RESAMPLES = 300
"""Bootstrap draws of subjects for the intervals of validation; those of the test set come from evaluate."""
_STEPS = 3  # fewer steps than this are no curve
_MANY = 20_000  # windows from which ROC curves get fewer draws


RivalScores = Mapping[str, Mapping[str, float]]
"""Every score of a rival by level: the mean over folds."""


@dataclass(frozen=True)
class ScoredSplit:
    """What a run knows about one split: scores and predictions of its trainings, and rivals on the same windows."""

    part: Part
    scores: Sequence[Score]
    paths: Sequence[Path]
    """The folders of these trainings."""
    rows: Rows | None
    """How the rivals compare; None if none was scored."""
    rivals: Mapping[str, Sequence[Predictions]]
    """What each rival predicted, by fold; rivals of earlier releases kept nothing."""
    rival_scores: Mapping[str, RivalScores]
    best: str | None
    """The best simple rival."""

    @property
    def first(self) -> Mapping[str, Any]:
        scores: Mapping[str, Any] = self.scores[0]["scores"]
        return scores

    @property
    def metric(self) -> str:
        return primary(self.first["kind"], self.first["names"])

    @property
    def found(self) -> Found:
        """The primary number, and how much stands behind it: all folds of one seed together."""
        one_seed = [one["scores"] for one in self.scores if one["seed"] == self.scores[0]["seed"]]
        value = summarise(self.scores)["levels"]["window"]["values"][self.metric]
        windows = sum(one["windows"] for one in one_seed)
        classes = [sum(one["classes"][k]["windows"] for one in one_seed) for k in range(len(self.first["classes"]))]
        subjects = sum(one["subjects"] for one in one_seed)
        mean, low, high, chance = (value[key] for key in ("mean", "low", "high", "chance"))
        rarest = min(classes, default=windows)
        return Found(self.part, title(self.metric), mean, low, high, chance, windows, rarest, subjects)

    def predictions(self) -> list[Predictions]:
        """Return the predictions of all trainings; none if a file is missing."""
        paths = [path / f"{self.part}.npz" for path in self.paths]
        return [Predictions.load(path) for path in paths] if all(path.exists() for path in paths) else []


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
    task, choices = settings["task"], settings["choices"]
    record = read_record(folder)
    validation = _validation(folder, trainings, tell)
    test = None if record is None else _test(folder, record, trainings, settings, tell)
    held_out = choices["freeze"] and choices["solver"] == "exact" and choices.get("readout") is not None
    verdict = _verdict(run, folder, test, validation, not held_out)
    weights = next(
        (path / "model.safetensors" for path, _, _ in trainings if (path / "model.safetensors").exists()), None
    )
    shown_first = test or validation
    parts = [
        verdict_box(verdict),
        _cards(shown_first) if shown_first is not None and verdict.state not in ("few", "open") else "",
        paragraph(_summary(settings, len(trainings)), soft=True),
        *([] if (line := one_for_all(settings)) is None else [paragraph(f"{line}.")]),
        *_seen_before(run),
        *_histories(trainings),
    ]
    if test is not None and record is not None:
        times = "once" if record.scorings == 1 else f"{record.scorings} times; the numbers are of the first time"
        parts += [heading("Test"), paragraph(f"The test set was scored {times}."), *_section(test, folder, False)]
        if record.scorings > 1:
            last = replace(test, scores=of_seeds(record.last, seeds_that_differ(settings))["trainings"])
            parts.append(folded("The last scoring", _score_tables(last)))
    parts += external_section(folder)
    if validation is None:
        parts += [heading("Validation"), paragraph("No training has predictions for it.", soft=True)]
    else:
        inside = _section(validation, folder, not held_out)
        parts.append(heading("Validation"))
        parts += [folded("Scores and pictures of the validation split", "".join(inside))] if test else inside
    parts += _curves(trainings)
    return page(f"Fine-tuning: {task['task']}", parts + provenance(run, weights, again(run, scored=test is not None)))


# What the page is made of


def _trainings(folder: Path, settings: Mapping[str, Any]) -> list[tuple[Path, str, int]]:
    """Return folder, fold and seed of each training that has begun."""
    count, seeds = settings["choices"]["folds"], seeds_that_differ(settings)
    folds = [""] if count is None else [f"fold-{number + 1}" for number in range(count)]
    found = [(folder / fold / f"seed-{seed}", fold, seed) for fold in folds for seed in seeds]
    return [one for one in found if one[0].is_dir()]


def _validation(folder: Path, trainings: Sequence[tuple[Path, str, int]], tell: Tell) -> ScoredSplit | None:
    having = [one for one in trainings if (one[0] / "validation.npz").exists()]
    scores = []
    for number, (path, fold, seed) in enumerate(having):
        tell("validation scores of trainings", number, len(having))
        scores.append(_validation_scores(path, fold, seed))
    return _split(folder, "validation", scores, [path for path, _, _ in having], tell) if having else None


def _validation_scores(path: Path, fold: str, seed: int) -> Score:
    predictions, weights = Predictions.load(path / "validation.npz"), path / "model.safetensors"
    if weights.exists():
        scores = score_by(weights, predictions, RESAMPLES)
    else:  # it was killed after it wrote its predictions and before it wrote its weights
        scores = score(predictions, resamples=RESAMPLES).to_dict()
    return {"fold": fold, "seed": seed, "scores": json.loads(json.dumps(scores)), "events": None}


def _test(
    folder: Path,
    record: ScoreRecord,
    trainings: Sequence[tuple[Path, str, int]],
    settings: Mapping[str, Any],
    tell: Tell,
) -> ScoredSplit:
    scores = of_seeds(record.first, seeds_that_differ(settings))["trainings"]
    places = {(fold, seed): path for path, fold, seed in trainings}
    unknown = folder / "unknown"
    return _split(folder, "test", scores, [places.get((one["fold"], one["seed"]), unknown) for one in scores], tell)


def _split(folder: Path, part: Part, scores: Sequence[Score], paths: Sequence[Path], tell: Tell) -> ScoredSplit:
    rows = read_rivals(folder, part)
    best = None if not rows else best_simple(rows)
    folds = list(dict.fromkeys(one["fold"] for one in scores))
    rivals = {}
    for number, row in enumerate(rows or ()):
        tell(f"{part} scores of rivals", number, len(rows or ()))
        if row["name"] != CHANCE and (found := rival_outputs(folder, part, folds, row["name"])):
            rivals[row["name"]] = found
    values = {name: _rival_scores(outputs) for name, outputs in rivals.items()}
    return ScoredSplit(part, scores, paths, rows, rivals, values, None if best is None else best["name"])


def _verdict(
    run: Mapping[str, Any], folder: Path, test: ScoredSplit | None, validation: ScoredSplit | None, flattered: bool
) -> Verdict:
    """Return the headline: of the test split or, before it was scored, of validation."""
    if test is None:
        found = None if validation is None else validation.found
        verdict = not_tested(found, None if validation is None else validation.rows, flattered)
    else:
        verdict = of_scores(test.found, test.rows)
        warning = disagreement(None if validation is None else validation.found, test.found)
        verdict = replace(verdict, warnings=(*filter(None, [warning]), *verdict.warnings))
    words = [] if validation is None or not validation.rows else [saved_words(folder, validation.rows, "my-run")]
    below = [f"{line[0].upper()}{line[1:]}." for line in filter(None, words)]
    if run.get("seen", {}).get("labels"):
        spoiled = "These are no scores of new subjects: an earlier fine-tuning learned labels of test subjects."
        verdict = replace(verdict, warnings=(spoiled, *verdict.warnings))
    return replace(verdict, below=(*verdict.below, *below))


def _summary(settings: Mapping[str, Any], count: int) -> str:
    task, choices = settings["task"], settings["choices"]
    how = "new weights"
    if settings["from"] is not None:
        how = "frozen, pre-trained weights (linear probe)" if choices["freeze"] else "pre-trained weights"
        if choices.get("lora") is not None:  # older releases had no adapters
            how += f" with adapters of rank {choices['lora']}{', after their probe' if choices.get('few') else ''}"
    folds = f" in each of {choices['folds']} folds" if choices["folds"] else ""
    seeds = f"{counted(len(seeds_that_differ(settings)), 'seed')}{folds}: {counted(count, 'training')}"
    return (
        f"{task['kind'].capitalize()} of {', '.join(task['names'])} in windows of {task['seconds']:g} s, from {how}; "
        f"{seeds}. Data: {settings['store']['dataset']}. "
        f"Training, validation and test share no {settings['unit']}."
    )


def _seen_before(run: Mapping[str, Any]) -> list[str]:
    """Say whether the weights had learned from the test subjects; runs of older releases do not record it."""
    line = run.get("seen", {}).get("text", "whether the test subjects were pre-trained on was not recorded")
    return [paragraph(f"{line[0].upper()}{line[1:]}.", soft=True)]


def _histories(trainings: Sequence[tuple[Path, str, int]]) -> list[str]:
    """Say of each training whose length was changed on the way how long it was until when."""
    found = []
    for path, fold, seed in trainings:
        if (path / "run.json").exists() and (words := history_words(RunFolder(path).read())) is not None:
            found.append(paragraph(f"{fold} seed {seed}: the {words}.".strip(), soft=True))
    return found


def _cards(split: ScoredSplit) -> str:
    """Return the numbers of the headline as boxes."""
    value, found = summarise(split.scores)["levels"]["window"]["values"][split.metric], split.found
    spread = "" if value["std"] is None else f" ± {value['std']:.3f}"
    numbers = [(f"{shown(value['mean'])}{spread}", f"{found.metric} by window, this model (higher is better)")]
    best = next((row for row in split.rows or () if row["name"] == split.best), None)
    if best is not None:
        numbers.append((shown(best["rival"]), f"the best simple rival, {best['name']}"))
        numbers.append((f"{best['difference']:+.3f}", "this model minus the rival"))
    numbers.append((shown(found.chance), "a guess"))
    numbers.append((f"{found.subjects:,}", f"{split.part} subjects with {counted(found.windows, 'window')}"))
    return facts(numbers)


def _curves(trainings: Sequence[tuple[Path, str, int]]) -> list[str]:
    """Return the curves of training; a probe that was solved exactly has none."""
    lines = {f"{fold} seed {seed}".strip(): read_lines(path / "metrics.jsonl") for path, fold, seed in trainings}
    lines = {name: found for name, found in lines.items() if found}
    if not lines:
        return []
    if max(line["step"] for found in lines.values() for line in found) < _STEPS:
        return [heading("Training"), paragraph("So few steps are no curve.", soft=True)]
    names = sorted({key for found in lines.values() for line in found for key in line if key[:11] == "validation_"})
    return [heading("Training"), figures.curves_figure(lines, [(name, "own") for name in names], figure)]


# One split


def _section(split: ScoredSplit, folder: Path, flattered: bool) -> list[str]:
    """Return all parts of the page about one split."""
    first, found = split.first, split.found
    positive = positive_of(first["kind"], first["names"])
    words = [
        "" if positive is None else f"Positive: {positive} (AUPR (positive class) and the threshold speak of it).",
        "Weights and threshold were chosen on these windows, so the numbers flatter."
        if split.part == "validation" and flattered
        else "",
    ]
    left_out = []
    parts = [paragraph(" ".join(filter(None, words)), soft=True) if any(words) else ""]
    parts += _beside_rivals(split)
    curves = _roc(split)
    if curves:
        parts += curves
    elif first["kind"] == "classification":
        left_out.append("ROC curves")
    if first["confusion"] is not None:
        parts += _confusion(split)
    if first["calibration"] is not None and found.windows >= LEAST_CALIBRATION and not found.few:
        lines = {_training_name(one): one["scores"]["calibration"] for one in split.scores}
        parts += [
            subheading("Calibration"),
            figure(
                lambda canvas: draw_calibration(canvas, lines),
                5,
                4.6,
                "Probabilities that the model says against the share that came true",
                "On the dotted line a probability is what it says.",
                wide=False,
            ),
        ]
    elif first["calibration"] is not None:
        left_out.append("calibration")
    subjects, drawn = _subjects(split)
    parts += subjects
    left_out += [] if drawn else ["a picture of subjects"]
    if left_out:
        size = f"{counted(found.windows, 'window')} of {found.who}"
        parts.append(paragraph(f"Not drawn, because {size} cannot carry it: {', '.join(left_out)}.", soft=True))
    parts += [subheading("All scores"), _score_tables(split)]
    notes = summarise(split.scores)["notes"]
    return [*parts, *(paragraph(f"Note: {note}.", soft=True) for note in notes)]


def _beside_rivals(split: ScoredSplit) -> list[str]:
    """Return how this model stands beside each rival, as a picture and a table."""
    rows = split.rows
    if not rows:
        return [
            paragraph("No simple rival was scored on these windows; leave --no-rivals out to have them.", soft=True)
        ]
    title_of = f"This model minus each rival, {title(rows[0]['metric'])} by window, {split.part} split"
    notes = [f"{note[0].upper()}{note[1:]}." for note in rival_notes(rows)]
    simple = [row for row in rows if row["name"] != CHANCE]  # a guess is so far away that nothing else could be told
    picture = (
        ""
        if not simple or split.found.few
        else figure(
            partial(draw_rivals, rows=simple),
            6.2,
            1.0 + 0.36 * len(simple),
            title_of,
            f"{title_of}; right of the line this model is better. {_interval_words(rows)}",
            wide=False,
        )
    )
    return [
        subheading("Beside simple features"),
        picture,
        table(
            ["", "rival", "this model", "this model - rival", "95 % over subjects"],
            [
                [row["name"], shown(row["rival"]), shown(row["ours"]), f"{row['difference']:+.3f}", _between(row)]
                for row in rows
            ],
        ),
        paragraph(" ".join(notes), soft=True) if notes else "",
    ]


def _between(row: Mapping[str, Any]) -> str:
    return "n/a" if row["low"] is None else f"{row['low']:+.3f} to {row['high']:+.3f}"


def _interval_words(rows: Rows) -> str:
    if any(row["low"] is not None for row in rows):
        over = counted(rows[0]["subjects"], "subject")
        return f"Bars: 95 % over {over}. Blue: this model wins; orange: the rival wins; grey: neither."
    return "No interval: there are fewer than six subjects, or folds with a model of their own."


def _roc(split: ScoredSplit) -> list[str]:
    """Return ROC curves of the positive class, or of each of more classes; nothing if windows do not suffice."""
    names, found = split.first["names"], split.found
    places = [1] if len(names) == 2 else range(len(names))
    if split.first["kind"] != "classification" or found.few or len(places) > MOST_CURVES:
        return []
    ours = split.predictions()
    if not ours:
        return []
    rivals = [name for name in (split.best, RANDOM) if name is not None and name in split.rivals]
    panels: dict[str, list[tuple[str, Curve]]] = {}
    for place in places:
        drawn = curve(ours, place, resamples=200 if len(ours[0]) <= _MANY else 50)
        if drawn is None:
            continue
        value = None if len(names) > 2 else summarise(split.scores)["levels"]["window"]["values"]["auroc"]["mean"]
        lines = [(_labelled("this model", value), drawn)]
        for name in rivals:
            if (line := curve(split.rivals[name], place, resamples=1)) is not None:
                value = None if len(names) > 2 else split.rival_scores[name]["window"].get("auroc")
                lines.append((_labelled(name, value), line))
        panels[f"{names[place]} against the rest" if len(names) > 2 else f"Finding {names[place]}"] = lines
    if not panels:
        return []
    first = next(iter(panels.values()))[0][1]
    band = " Band: 95 % over subjects." if first.low is not None else ""
    mean = " Each curve is the mean over trainings." if len(ours) > 1 else ""
    many = len(panels) > 1
    columns, rows = min(4, len(panels)), -(-len(panels) // 4)
    return [
        subheading("ROC curves" if many else "ROC curve"),
        figure(
            lambda canvas: draw_roc(canvas, panels),
            2.6 * columns if many else 5,
            2.75 * rows if many else 4.6,
            f"Share that is found against the share of false alarms: {'; '.join(panels)}",
            f"The nearer a curve is to the upper left corner, the better.{band}{mean}",
            wide=many,
        ),
    ]


def _labelled(name: str, value: float | None) -> str:
    return name if value is None else f"{name}, AUROC {value:.3f}"


def _confusion(split: ScoredSplit) -> list[str]:
    """Return the confusion as a picture or, of few data, as tables without shares."""
    counts, names = _confusions(split.scores), split.first["names"]
    parts = [subheading("Confusion")]
    if split.found.few:
        for words, matrix in counts.items():
            line = words.replace("\n", " ")
            rows = [[f"true {name}", *(f"{n:,}" for n in row)] for name, row in zip(names, matrix, strict=True)]
            head = ["", *(f"said {name}" for name in names)]
            parts += [paragraph(f"{line[0].upper()}{line[1:]}:", soft=True), table(head, rows)]
        return parts
    size = 1.6 + 0.85 * len(names)
    picture = figure(
        lambda canvas: draw_confusions(canvas, counts, names),
        (size + 0.8) * len(counts),
        size,
        f"True against predicted class: {'; '.join(counts)}".replace("\n", " "),
        "Of all trainings together; the share is of the true class.",
        wide=len(counts) > 1,
    )
    return [*parts, picture]


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


def _subjects(split: ScoredSplit) -> tuple[list[str], bool]:
    """Return the part on subjects, and whether it has a picture: a few dots would say no more than the table."""
    rows = [one["scores"]["by_subject"] for one in split.scores]
    by = _subject_metric(rows, split.metric)
    ids = sorted({row["subject"] for training in rows for row in training})
    numbers = {subject: str(place + 1) for place, subject in enumerate(ids)}
    parts = [subheading("Subjects")]
    if len(subject_values(rows, by)) < LEAST_SUBJECTS:
        return [*parts, _subject_table(rows, numbers)], False
    (rule,) = by_rule(split.first["kind"], split.first["names"], (by,))
    caption = f"{title(by)}{f', {rule}' if rule else ''}. Subjects are numbered in the order of their ids."
    drawn = figure(lambda canvas: draw_subjects(canvas, rows, by, numbers), 9, 3.4, "Score of each subject", caption)
    whole = folded("All subjects, the mean of all trainings", _subject_table(rows, numbers))
    return [*parts, drawn, whole], True


def _subject_metric(rows: Sequence[Sequence[Mapping[str, Any]]], first: str) -> str:
    """Return the measure that most subjects have; ``first`` wins a tie."""
    names = list(dict.fromkeys(name for training in rows for row in training for name in row["values"]))
    if not names:
        raise ConfigError("the scores name no measure for any subject; score again")
    having = {name: sum(row["values"].get(name) is not None for t in rows for row in t) for name in names}
    return max(names, key=lambda name: (having[name], name == first))


def _subject_table(rows: Sequence[Sequence[Mapping[str, Any]]], numbers: Mapping[str, str]) -> str:
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
        counts = [f"{parts[0]['recordings']:,}", f"{parts[0]['windows']:,}"]
        lines.append([f"subject {numbers[subject]}", short_id(subject), *counts, *means])
    head = ["", "id", "recordings", "windows", *(title(name).replace("_", " ") for name in names)]
    return table(head, lines)


# Tables of scores


def _rival_scores(outputs: Sequence[Predictions]) -> RivalScores:
    found: dict[str, dict[str, list[float]]] = {}
    for one in outputs:
        for level, of in score(one, resamples=1).levels.items():
            for metric, estimate in of.values.items():
                if estimate.value is not None:
                    found.setdefault(level, {}).setdefault(metric, []).append(estimate.value)
    return {level: {metric: float(np.mean(of)) for metric, of in values.items()} for level, values in found.items()}


def _score_tables(split: ScoredSplit) -> str:
    """Return all scores of this model beside those of its rivals, by window, recording and subject."""
    summary, first = summarise(split.scores), split.first
    few, parts = split.found.few, []
    for name, found in summary["levels"].items():
        values = {rival: of.get(name, {}) for rival, of in split.rival_scores.items()}
        parts.append(_level_table(f"by {name} ({max(found['count']):,})", found["values"], values, few))
    parts.append(paragraph(_rule_words(first, tuple(summary["levels"]["window"]["values"])), soft=True))
    if (decided := summary.get("at_threshold")) is not None:
        words = at_threshold_words(decided["thresholds"], decided["chosen_on"])
        parts.append(subheading(f"As predict decides, {words}"))
        for name, found in decided["levels"].items():
            parts.append(_level_table(f"by {name} ({max(found['count']):,})", found["values"], {}, few))
    if "events" in summary:
        words = event_words(split.scores)
        parts.append(subheading(f"{words[0].upper()}{words[1:]}"))
        parts.append(_level_table("over all recordings", summary["events"], {}, few))
    return "".join(parts)


def _rule_words(first: Mapping[str, Any], metrics: Sequence[str]) -> str:
    """Say how classes were decided for each number, and which way is good."""
    rules = [
        f"{', '.join(title(metric) for metric in of)}: {rule}"
        for rule, of in by_rule(first["kind"], first["names"], metrics).items()
        if rule
    ]
    lower = ["RMSE: lower is better"] if any(metric.startswith("rmse") for metric in metrics) else []
    words = "; ".join([*rules, *lower, "all others: higher is better" if lower else "higher is better"])
    return f"{words[0].upper()}{words[1:]}."


def _level_table(
    name: str,
    values: Mapping[str, Mapping[str, float | None]],
    rivals: Mapping[str, Mapping[str, float]],
    few: bool,
) -> str:
    """Return the table of one level; a column that has nothing is left out, and few data have no intervals."""
    head = [name, "this model", "95 % over subjects", "± over seeds", *rivals, "a guess"]
    rows = []
    for metric, of in values.items():
        between = "" if few or of["low"] is None else f"{shown(of['low'])} to {shown(of['high'])}"
        beside = [shown(of_rival.get(metric)) for of_rival in rivals.values()]
        label = title(metric).replace("_", " ")
        rows.append([label, shown(of["mean"]), between, shown(of["std"]), *beside, shown(of.get("chance"))])
    return table(head, rows)
