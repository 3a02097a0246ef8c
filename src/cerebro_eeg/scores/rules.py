"""Rules: which number is the primary one, and by what each number was decided. Words for tables and reports.

Ranks (AUROC, AUPR) need no threshold. Accuracies, F1 and kappa take the most probable class, which for two classes is a
threshold of 0.5; what ``predict`` does is decided at the threshold that validation chose, and so are events. A number
beside which its rule does not stand is easily taken for another.
"""

from collections.abc import Mapping, Sequence
from typing import Any

_RANKS = ("auroc", "aupr")
WITHOUT = "without a threshold"


def primary(kind: str, names: Sequence[str]) -> str:
    """The one number that stands for a task, and that selection on validation looks at (``metrics.headline``)."""
    if kind == "regression":
        return "r2"
    return "auroc" if len(names) == 2 else "balanced_accuracy"


def by_rule(kind: str, names: Sequence[str], metrics: Sequence[str]) -> dict[str, list[str]]:
    """Metrics by the rule that decided, in words: the primary one's first. A regression decides nothing: no words."""
    if kind == "regression":
        return {"": list(metrics)}
    most = "by the most probable class" + (" (a threshold of 0.5)" if len(names) == 2 else "")
    found = {
        WITHOUT: [name for name in metrics if name in _RANKS],
        most: [name for name in metrics if name not in _RANKS],
    }
    first = WITHOUT if primary(kind, names) in _RANKS else most
    return {words: found[words] for words in sorted(found, key=lambda words: words != first) if found[words]}


def span(thresholds: Sequence[float]) -> str:
    """One threshold, or from the lowest to the highest of several trainings."""
    low, high = f"{min(thresholds):.3f}", f"{max(thresholds):.3f}"
    return low if low == high else f"{low} to {high}"


def event_words(scores: Sequence[Mapping[str, Any]]) -> str:
    """Of what events are and at which threshold, from the scores of trainings as ``test.json`` has them."""
    events, decided = [score["events"] for score in scores], [score["scores"]["at_threshold"] for score in scores]
    limits = [event["threshold"] for event in events]
    if not all(decided):
        words = f"at a threshold of {span(limits)}"
    elif limits == [at["threshold"] for at in decided]:
        words = f"at the same threshold ({span(limits)})"
    else:
        words = f"at a threshold of their own ({span(limits)}, chosen on validation over windows)"
    return f"events of {events[0]['name']} (SzCORE), {words}"
