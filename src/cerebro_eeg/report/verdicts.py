"""Verdicts: the sentence at the top of a page. Who wins, by how much, with the interval, on how many subjects.

A win is a difference of one sign in nine of ten draws of subjects, as everywhere here. Where data are too few to carry
a number, the sentence says so, and the number is not in the largest letters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from cerebro_eeg.progress import counted
from cerebro_eeg.runs.rivals import CHANCE, RANDOM, WIN, Rows, best_simple
from cerebro_eeg.scores.paired import FEWEST
from cerebro_eeg.scores.tables import shown

State = Literal["wins", "loses", "tied", "few", "open"]
LEAST_WINDOWS = 10
"""Windows of the rarest class, or of a regression in all, that a verdict needs."""
DISAGREE = 0.15
"""Difference between validation and test, in units of the score, that a warning is given for."""


@dataclass(frozen=True)
class Verdict:
    """The headline of a page."""

    state: State
    """few: the data cannot tell; open: nothing was tested yet."""
    sentence: str
    below: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def carries(self) -> bool:
        """Whether the data are enough for numbers in large letters."""
        return self.state != "few"


@dataclass(frozen=True)
class Found:
    """The primary number of a split, and how much stands behind it."""

    part: str
    """test or validation."""
    metric: str
    """The title of the score, such as AUROC."""
    value: float | None
    low: float | None
    high: float | None
    chance: float | None
    windows: int
    rarest: int
    """Windows of the rarest class; of a regression, all."""
    subjects: int

    @property
    def few(self) -> bool:
        return self.subjects < FEWEST or self.rarest < LEAST_WINDOWS or self.value is None

    @property
    def who(self) -> str:
        return counted(self.subjects, f"{self.part} subject")


def good_words(metric: str, chance: float | None) -> str:
    """Return which way a score is good."""
    guess = "" if chance is None else f", and a guess has {shown(chance)}"
    return f"Higher is better: 1 is perfect{guess}."


def of_scores(found: Found, rows: Rows | None) -> Verdict:
    """Return the headline for a split: this model beside the best simple rival or, without one, beside a guess."""
    best = None if not rows else best_simple(rows)
    if found.few:
        return _too_few(found, best)
    verdict = _beside_chance(found, rows) if best is None else _beside_rival(found, best)
    warnings = []
    guess = next((row for row in rows or () if row["name"] == CHANCE), None)
    if best is not None and guess is not None and not _ahead(guess):
        warnings.append(f"This model is not clearly better than a guess, which has {shown(guess['rival'])}.")
    if (control := next((row for row in rows or () if row["name"] == RANDOM), None)) is not None and not _ahead(
        control
    ):
        warnings.append("A head on random weights does as well: what the encoder has learned does not show here.")
    return replace(verdict, below=(*verdict.below, good_words(found.metric, found.chance)), warnings=tuple(warnings))


def _ahead(row: Mapping[str, Any]) -> bool:
    """Return whether we are ahead in nine of ten draws; without draws, whether we are ahead at all."""
    return bool(row["difference"] > 0 if row["above"] is None else row["above"] >= WIN)


def _too_few(found: Found, best: Mapping[str, Any] | None) -> Verdict:
    size = f"{counted(found.windows, 'window')} of {found.who}"
    sentence = f"Too few {found.part} data to say how good this model is: {size}."
    if found.value is None:
        return Verdict("few", sentence, ("The truth has one class only, so there is no score.",))
    number = f"{found.metric} was {shown(found.value)}, where a guess has {shown(found.chance)}"
    beside = "" if best is None else f"; the best simple rival, {best['name']}, had {shown(best['rival'])}"
    return Verdict(
        "few",
        sentence,
        (
            f"{number}{beside}. Luck decides such numbers: do not report them.",
            f"A verdict needs {FEWEST} subjects and {LEAST_WINDOWS} windows of each class.",
        ),
    )


def _beside_rival(found: Found, best: Mapping[str, Any]) -> Verdict:
    name, gap, where = best["name"], best["difference"], found.who
    numbers = f"{found.metric} {shown(best['ours'])} against {shown(best['rival'])}"
    alone = () if best["encoder"] else ("The head of this model reads simple features alone, as the rivals do.",)
    if best["above"] is None:
        side = "ahead of" if gap > 0 else "behind" if gap < 0 else "level with"
        words = f"This model is {side} the best simple rival, {name}: {numbers}, {gap:+.3f} on {where}, in folds."
        return Verdict("tied", words, ("Each fold has a model of its own, so the difference has no interval.", *alone))
    between = f"{gap:+.3f} (95 %: {best['low']:+.3f} to {best['high']:+.3f}) on {where}"
    if best["above"] >= WIN:
        return Verdict("wins", f"This model wins against the best simple rival, {name}: {numbers}, {between}.", alone)
    if best["below"] >= WIN:
        words = f"A simple rival wins, {name} with a linear model: this model has {numbers}, {between}."
        return Verdict("loses", words, ("Prefer the simple rival: it takes seconds.", *alone))
    words = f"No winner between this model and the best simple rival, {name}: {numbers}, {between}."
    advice = f"{where[0].upper()}{where[1:]} cannot tell this difference from chance. The simple rival is cheaper."
    if not gap:
        advice = "Both score the same. The simple rival is cheaper."
    return Verdict("tied", words, (advice, *alone))


def _beside_chance(found: Found, rows: Rows | None) -> Verdict:
    """Return the headline where no simple rival was scored."""
    why = "No simple rival was scored beside it."
    if rows:
        why = "No simple rival could be scored: the windows have no channel in common."
    number = f"{found.metric} {shown(found.value)}"
    if found.low is None or found.high is None or found.chance is None:
        return Verdict("tied", f"{number} on {found.who}; a guess has {shown(found.chance)}.", (why,))
    between = f"{number} (95 %: {shown(found.low)} to {shown(found.high)}) on {found.who}"
    if found.low > found.chance:
        return Verdict("wins", f"Better than a guess: {between}.", (why,))
    if found.high < found.chance:
        return Verdict("loses", f"Worse than a guess: {between}.", (why,))
    return Verdict("tied", f"Not clearly better than a guess: {between}.", (why,))


def not_tested(found: Found | None, rows: Rows | None, flattered: bool) -> Verdict:
    """Return the headline of a run whose test split was not scored."""
    ask = "The test split was not scored: cerebro-eeg evaluate does it, once."
    if found is None:
        return Verdict("open", "Not tested yet, and nothing was validated.", (ask,))
    inner = of_scores(found, rows)
    keep = inner.sentence.startswith(found.metric)  # the name of a score keeps its capitals
    first = inner.sentence if keep else inner.sentence[0].lower() + inner.sentence[1:]
    hint = ("Weights were chosen on these subjects, which flatters them.",) if flattered else ()
    state: State = "few" if inner.state == "few" else "open"
    return Verdict(state, f"Not tested yet. Validation: {first}", (*inner.below, *hint, ask), inner.warnings)


def disagreement(validation: Found | None, test: Found) -> str | None:
    """Return a warning if validation and test differ strongly."""
    if validation is None or validation.value is None or test.value is None:
        return None
    if abs(validation.value - test.value) < DISAGREE:
        return None
    numbers = f"{test.metric} {shown(validation.value)} on {validation.who} and {shown(test.value)} on {test.who}"
    if validation.few or test.few:
        why = "With so few subjects both are luck."
    elif validation.value > test.value:
        why = "The choice on validation did not carry over to new subjects."
    else:
        why = "The test subjects may be easier; expect less of others."
    return f"Validation and test disagree: {numbers}. {why}"


# Pre-training: errors, where lower is better


@dataclass(frozen=True)
class FillingIn:
    """The error of a model on hidden patches, and that of the best baseline."""

    model: float
    rival: float
    name: str
    subjects: int
    difference: float
    """The model's error minus the rival's; negative is good."""
    low: float | None
    high: float | None
    better: float | None
    """Share of the draws of subjects in which the model has the lower error; None below six subjects."""
    held_out: bool


def of_filling_in(found: FillingIn) -> Verdict:
    """Return the headline of a pre-training."""
    numbers = f"error {shown(found.model)} against {shown(found.rival)}"
    way = "Lower is better: 0 is perfect, and saying nothing has about 1."
    rival = f"the best baseline, {found.name}"
    whose = "held-out" if found.held_out else "training"
    where = f"on windows of {counted(found.subjects, f'{whose} subject')}"
    seen = () if found.held_out else ("Nothing was held out: these windows were also trained on.",)
    if found.better is None or found.low is None or found.high is None:
        side = "lower than" if found.difference < 0 else "not lower than"
        words = f"Too few subjects for a verdict: {numbers} of {rival}, {where}."
        return Verdict("few", words, (f"The model's error is {side} that of {found.name}. {way}", *seen))
    between = f"{found.difference:+.3f} (95 %: {found.low:+.3f} to {found.high:+.3f}) {where}"
    if 1 - found.better >= WIN:
        words = f"The model fills hidden patches in worse than {rival}: {numbers}, {between}."
        return Verdict("loses", words, ("It has not learned to fill patches in, or not for long enough.", way, *seen))
    if found.better < WIN:
        words = f"No winner between the model and {rival}: {numbers}, {between}."
        return Verdict("tied", words, (way, *seen))
    words = f"The model fills hidden patches in better than {rival}: {numbers}, {between}."
    return Verdict("wins" if found.held_out else "tied", words, (way, *seen))


# A comparison: our default beside simple rivals


def of_task(table: Mapping[str, Any], metric: str) -> Verdict:
    """Return the headline of one task of a comparison."""
    rows = {row["name"]: row for row in table["rows"]}
    ours, found = rows.get("default"), table["verdict"]
    if ours is None:
        return Verdict("open", "Our default was not part of this comparison, so there is no verdict.")
    on = "test" if ours["test"] is not None else "cv"
    value, chance = ours[on], rows.get("chance", {}).get("cv", {}).get("value")
    who = counted(value["subjects"], "test subject" if on == "test" else "cross-validated subject")
    number = f"{metric} {shown(value['value'])}"
    few = value["subjects"] < FEWEST
    if found is None:
        if few:
            return Verdict(
                "few",
                f"Too few test data to say who wins: {who}.",
                (f"Our default has {number}. A verdict needs {FEWEST} subjects.", "No simple rival was scored."),
            )
        words = (
            f"{number} (95 %: {shown(value['low'])} to {shown(value['high'])}) on {who}; no simple rival was scored."
        )
        return Verdict("tied", f"Our default has {words}", (good_words(metric, chance),))
    name, gap = found["rival_name"], found["difference"]
    numbers = f"{metric} {shown(found['ours'])} against {shown(found['rival'])}"
    if found["above"] is None:
        lines = (
            f"Our default has {numbers} of the best simple rival, {name}. Luck decides such numbers.",
            f"A verdict needs {FEWEST} subjects.",
        )
        return Verdict("few", f"Too few test data to say who wins: {who}.", lines)
    between = f"{gap:+.3f} (95 %: {found['low']:+.3f} to {found['high']:+.3f}) on {who}"
    below = [good_words(metric, chance)]
    if found["state"] == "tied":
        same = (
            "Both score the same." if not gap else f"{who[0].upper()}{who[1:]} cannot tell this difference from chance."
        )
        below.insert(0, f"{same} The simple model is cheaper.")
    if found["state"] == "loses":
        below.insert(0, "Prefer the simple model: it takes seconds.")
    words_of = {
        "wins": f"Our default wins against the best simple rival, {name}: {numbers}, {between}.",
        "loses": f"A simple rival wins, {name}: our default has {numbers}, {between}.",
        "tied": f"No winner between our default and the best simple rival, {name}: {numbers}, {between}.",
    }
    warnings = []
    if on == "cv":
        below.append(
            "There is no test split: the same division into folds chose the settings, which flatters a little."
        )
    elif (gap_to_cv := _from_cv(ours)) is not None:
        warnings.append(gap_to_cv)
    control = max(
        (row for row in table["rows"] if row["family"] == "control"), key=lambda row: row["cv"]["value"], default=None
    )
    minus = None if control is None else control["minus"]["test"] or control["minus"]["cv"]
    if control is not None and minus is not None and minus["above"] is not None and minus["above"] < WIN:
        warnings.append(
            f"The control without pre-training, {control['name']}, does as well: pre-training does not show here."
        )
    return Verdict(found["state"], words_of[found["state"]], tuple(below), tuple(warnings))


def _from_cv(row: Mapping[str, Any]) -> str | None:
    """Return a warning if a cross-validated score and that of the test split differ strongly."""
    crossed, test = row["cv"]["value"], row["test"]["value"]
    if abs(crossed - test) < DISAGREE:
        return None
    return (
        f"Cross-validation and test disagree: {shown(crossed)} on {counted(row['cv']['subjects'], 'subject')} and "
        f"{shown(test)} on {counted(row['test']['subjects'], 'test subject')}."
    )


def of_comparison(verdicts: Sequence[tuple[str, Verdict]], means: Mapping[str, Any], best: str | None) -> Verdict:
    """Return the headline of a comparison over tasks; ``best`` is the best simple rival by cross-validation."""
    if len(verdicts) == 1:
        return verdicts[0][1]
    count = {state: [task for task, one in verdicts if one.state == state] for state in ("wins", "tied", "loses")}
    judged = sum(map(len, count.values()))
    few = [task for task, one in verdicts if one.state == "few"]
    if not judged:
        return Verdict("few", f"Too few test data to say who wins on any of {len(verdicts)} tasks.")
    words = f"Our default wins on {len(count['wins'])} of {counted(judged, 'task')} against the best simple rival"
    rest = []
    if count["tied"]:
        rest.append(f"no winner on {len(count['tied'])}")
    if count["loses"]:
        rest.append(f"it loses on {len(count['loses'])} ({', '.join(count['loses'])})")
    state: State = (
        "wins" if len(count["wins"]) > judged / 2 else "loses" if len(count["loses"]) > judged / 2 else "tied"
    )
    below = []
    if best is not None and "default" in means and best in means:
        on = "test" if means["default"]["test"] is not None and means[best]["test"] is not None else "cv"
        where = {"test": "on test", "cv": "cross-validated"}[on]
        below.append(
            f"Mean AUROC over tasks with classes, {where}: {shown(means['default'][on])} against "
            f"{shown(means[best][on])} of {best}. Higher is better: 1 is perfect."
        )
    if few:
        below.append(f"Too few test data on {', '.join(few)}.")
    return Verdict(state, "; ".join([words, *rest]) + ".", tuple(below))
