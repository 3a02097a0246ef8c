"""Subjects whose names differ in spelling alone: different people to us, and mostly one to who wrote them."""

import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable


def count_alike(names: Iterable[str]) -> int:
    """How many of the different names are another one but for case, blanks or the way a letter is composed."""
    counts = Counter(map(_folded, set(names)))
    return sum(count for count in counts.values() if count > 1)


def warn_of_alike(names: Iterable[str]) -> None:
    """Say how many there are, and none of them: a name may say who was recorded."""
    alike = count_alike(names)
    if alike:
        warnings.warn(
            f"{alike:,} subjects are called like another but for case or blanks (as s1 and S1 would be) and count as "
            "different people; where they are not, splits by subject would share them: spell each in one way",
            stacklevel=2,
        )


def _folded(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())
