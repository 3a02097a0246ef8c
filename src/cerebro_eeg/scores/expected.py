"""What so few subjects can show: the width of the interval of a score that is to be expected, before any training.

Windows of a subject are alike, so subjects are what counts. How much they differ is not known before, so typical values
take its place, and the result is a rough guide:

- Where every subject has one answer (a trait), each counts as one case. AUROC has the variance of Hanley and McNeil,
  "The meaning and use of the area under a receiver operating characteristic (ROC) curve", Radiology 143 (1982) 29,
  at an AUROC of 0.75. Balanced accuracy has that of a binomial for each class, halfway between chance and 1.
- Where a subject has several answers (a state), its own score deviates from the mean of all by 0.12. That of band
  power did so by 0.12 on ``eyes``, 0.14 on ``arithmetic``, 0.10 on ``stress4`` and 0.09 on ``ssvep4``: tasks of the
  open-EEG pack, cross-validated over training and validation subjects.
- R2 has its large-sample variance with one case per subject, at an R2 of 0.5.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NORMAL = 1.959964
"""Deviations of a normal distribution within which 95 % lie."""
DEVIATION = 0.12
"""Typical deviation of the scores of single subjects from their mean, where a subject has several answers."""
AUROC = 0.75
R2 = 0.5


def half_width(kind: str, names: Sequence[str], truth: NDArray[Any], subject: NDArray[Any]) -> float | None:
    """Return half of the 95 % interval to be expected of the primary score of these windows.

    It is None where the truth lacks a class, or where there are fewer than two subjects.
    """
    subjects, unit = np.unique(subject, return_inverse=True)
    if len(subjects) < 2:
        return None
    if kind == "regression":
        return NORMAL * 2 * math.sqrt(R2) * (1 - R2) / math.sqrt(len(subjects))
    has = np.zeros((len(subjects), len(names)), np.bool_)
    has[unit, truth] = True
    count = has.sum(0)
    if not count.all():
        return None
    if (has.sum(1) > 1).any():
        return NORMAL * DEVIATION / math.sqrt(len(subjects))
    if len(names) == 2:
        return NORMAL * math.sqrt(auroc_variance(AUROC, int(count[1]), int(count[0])))
    share = (1 + 1 / len(names)) / 2
    return NORMAL * math.sqrt((share * (1 - share) / count).sum()) / len(names)


def auroc_variance(auroc: float, positive: int, negative: int) -> float:
    """Return the variance of an AUROC of so many positive and negative cases, after Hanley and McNeil."""
    first, second = auroc / (2 - auroc), 2 * auroc**2 / (1 + auroc)
    found = auroc * (1 - auroc) + (positive - 1) * (first - auroc**2) + (negative - 1) * (second - auroc**2)
    return found / (positive * negative)
