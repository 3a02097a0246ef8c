"""The paper's own curves of runtime and memory over tokens, from the numbers in its plots (paper.csv).

arXiv:2501.10885, on NVIDIA RTX 2080 Ti: "sizes" is the figure of three sizes with standard and alternating attention
(Section 3.4), "kinds" that of the four kinds, Large (Appendix B; one curve stands for alternating and bottleneck). The
two do not agree where they overlap, so they are never joined.
"""

import csv
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Point:
    """What the paper plots; None where it ran out of memory."""

    ms: float | None
    mb: float | None


def read_curves() -> dict[tuple[str, str, str, int], Point]:
    """By figure, preset, attention and tokens."""
    text = files("cerebro_eeg.bench").joinpath("paper.csv").read_text(encoding="utf-8")
    return {
        (row["figure"], row["preset"], row["attention"], int(row["tokens"])): Point(
            float(row["ms"]) if row["ms"] else None, float(row["mb"]) if row["mb"] else None
        )
        for row in csv.DictReader(text.splitlines())
    }
