"""DemoResult: what ``demo`` found, as numbers and as a page of text."""

from dataclasses import asdict, dataclass

from cerebro_eeg.progress import counted, in_time


@dataclass(frozen=True)
class Score:
    """A number on the test subjects, its 95 % interval over them, and that of always saying the larger class."""

    value: float | None
    low: float | None
    high: float | None
    chance: float | None

    def text(self) -> str:
        value, low, high = (
            "n/a" if number is None else f"{number:.2f}" for number in (self.value, self.low, self.high)
        )
        return value if self.low is None or self.high is None else f"{value} ({low} to {high})"


@dataclass(frozen=True)
class Row:
    """One way to learn the task."""

    name: str
    balanced_accuracy: Score
    auroc: Score


@dataclass(frozen=True)
class Block:
    """A block of the new recording: eyes open or closed, and what the model says of the windows within it."""

    start: float
    truth: str
    said: str
    windows: int


@dataclass(frozen=True)
class DemoResult:
    """What came of it."""

    folder: str
    seed: int
    quick: bool
    masked_error: float
    """On subjects that were not trained on, as a share of the variance."""
    windows: dict[str, int]
    """Of the task, by split."""
    subjects: dict[str, int]
    rows: tuple[Row, ...]
    blocks: tuple[Block, ...]
    reports: tuple[str, ...]
    commands: tuple[str, ...]
    seconds: float

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    def text(self) -> str:
        counts = ", ".join(
            f"{split} {count:,} of {counted(self.subjects[split], 'subject')}" for split, count in self.windows.items()
        )
        first = self.rows[0]
        chance = [Score(of.chance, None, None, None).text() for of in (first.balanced_accuracy, first.auroc)]
        table = [
            ("", "balanced accuracy", "AUROC"),
            *((row.name, row.balanced_accuracy.text(), row.auroc.text()) for row in self.rows),
            ("chance", chance[0], chance[1]),
        ]
        right = sum(block.said == block.truth for block in self.blocks)
        lines = [
            "Eyes open or closed? On test subjects, whom nothing was trained or chosen on; scored once.",
            *(f"  {name:18}{accuracy:24}{auroc}".rstrip() for name, accuracy, auroc in table),
            f"  windows   {counts}; seed {self.seed}",
            "  brackets  95 % intervals over test subjects: smaller differences mean little",
            f"  new recording: {right} of {counted(len(self.blocks), 'block')} named rightly",
            "Simulated EEG is simpler than anybody's: the numbers say that the parts work, not how well on your data."
            + (" With --quick nothing is learned." if self.quick else ""),
            *(f"Report: {report}" for report in self.reports),
            f"Done in {in_time(self.seconds)}. The commands above work on your own files; start with prepare.",
        ]
        return "\n".join(lines)
