"""``cerebro-eeg demo``: from EEG files to a prediction, on simulated EEG, by commands that anyone can type.

Every step calls the function of another verb, and the command line that is printed is made from that very call.
"""

import contextlib
import csv
import io
import shlex
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from cerebro_eeg.errors import ConfigError, StoppedError
from cerebro_eeg.files import write_text
from cerebro_eeg.progress import Progress, counted, in_time, unheard

SECONDS = 3.0  # length of a window
SEEDS = 2**40
Found = TypeVar("Found")


@dataclass(frozen=True)
class DemoSize:
    """How much is simulated and trained."""

    subjects: int
    minutes: float
    steps: int
    task_subjects: int
    task_minutes: float
    task_epochs: int


FULL = DemoSize(subjects=8, minutes=2.0, steps=350, task_subjects=25, task_minutes=1.0, task_epochs=10)
QUICK = DemoSize(subjects=4, minutes=0.2, steps=2, task_subjects=3, task_minutes=0.5, task_epochs=1)


@dataclass(frozen=True)
class ScoreInterval:
    """A score on the test subjects, its 95 % interval over them, and the score of always answering the larger class."""

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
class MethodScores:
    """The scores of one way to learn the task."""

    name: str
    balanced_accuracy: ScoreInterval
    auroc: ScoreInterval


@dataclass(frozen=True)
class PredictedBlock:
    """A block of the new recording (eyes open or closed), and the class that the model gives to its windows."""

    start: float
    truth: str
    said: str
    windows: int


@dataclass(frozen=True)
class DemoResult:
    """The results of all steps, as numbers and as a page of text."""

    folder: str
    seed: int
    quick: bool
    masked_error: float
    """Masked error on subjects that were not trained on, as a share of the variance."""
    windows: dict[str, int]
    """Windows of the task, by split."""
    subjects: dict[str, int]
    rows: tuple[MethodScores, ...]
    blocks: tuple[PredictedBlock, ...]
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
        chance = [ScoreInterval(of.chance, None, None, None).text() for of in (first.balanced_accuracy, first.auroc)]
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


def demo(*, out: Path = Path("cerebro-demo"), seed: int = 0, quick: bool = False, open: bool = False) -> DemoResult:
    """Simulate EEG, prepare it, pre-train a tiny model, teach it a task, score it, predict: in minutes on a CPU.

    Pre-training sees unlabelled recordings of moving hands, walking and seizures. The task, whether the eyes are open,
    comes from other subjects; a linear probe, full fine-tuning and the same model from scratch are compared on it.

    Try, for example:
      cerebro-eeg demo --open

    Args:
        out: The folder for all of it; it must be new or empty.
        seed: Of subjects, weights and order.
        quick: As little of everything as runs, to see the steps: nothing is learned.
        open: Show the report in a browser at the end.
    """
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise ConfigError(f"{out} is a file or not empty; delete it, or name another folder with --out")
    if not 0 <= seed < SEEDS:
        raise ConfigError(f"seed is {seed}; expected a whole number from 0 to 2**40 - 1")
    began = time.monotonic()
    steps = _Steps(out, QUICK if quick else FULL, seed)
    try:
        with unheard():  # every model would print the same lines when it loads
            steps.simulate()
            steps.prepare()
            masked_error = steps.pretrain()
            rows = steps.compare()
            blocks = steps.predict()
    except StoppedError as error:
        raise StoppedError(f"stopped; delete {out} and start again, or go on with the last command shown") from error
    windows, subjects = count_task(out)
    pages = [out / run / "report.html" for run in ("pretrained", "finetuned")]
    reports = tuple(str(page) for page in pages if page.exists())
    if open and reports:
        import webbrowser

        webbrowser.open(Path(reports[0]).absolute().as_uri())
    seconds = time.monotonic() - began
    return DemoResult(
        str(out), seed, quick, masked_error, windows, subjects, rows, blocks, reports, tuple(steps.commands), seconds
    )


class _Steps:
    """The steps of the demo; each prints what it does on stderr."""

    def __init__(self, out: Path, size: DemoSize, seed: int) -> None:
        self._out, self._size, self._seed = out, size, seed
        self._say = Progress().say
        self.commands: list[str] = []

    def simulate(self) -> None:
        """Simulate two corpora; their seeds differ, so their subjects differ, too."""
        from cerebro_eeg.commands.simulate import simulate

        size = self._size
        self._say("1. Simulate EEG as EDF files: recordings to pre-train on, and a task of other subjects")
        parts = [
            self._do(
                simulate,
                self._out / "unlabelled",
                subjects=size.subjects,
                minutes=size.minutes,
                tasks=("hands", "gait", "seizure"),
                montages=("10-20", "epoc", "32", "bipolar"),
                seed=3 * self._seed,
            ),
            self._do(
                simulate,
                self._out / "eyes",
                subjects=size.task_subjects,
                minutes=size.task_minutes,
                tasks=("eyes",),
                montages=("10-20", "epoc", "bipolar"),
                seed=3 * self._seed + 1,
            ),
        ]
        for part in parts:
            rates = ", ".join(str(rate) for rate in sorted(part.rates))
            self._say(
                f"   {counted(part.recordings, 'file')} of {counted(part.subjects, 'subject')}, montages "
                f"{', '.join(part.montages)}, at {rates} Hz"
            )

    def prepare(self) -> None:
        """Make a store of each corpus."""
        from cerebro_eeg.commands.prepare import prepare

        self._say("\n2. Prepare both: filter, notch, resample to 256 Hz, store")
        # Ids decide the order of training. A key made from the seed lets the numbers repeat; nothing here is secret.
        write_text(self._out / "key", f"{self._seed:064x}\n")
        (self._out / "key").chmod(0o600)
        table = self._out / "pretrain.csv"
        write_table(self._out / "unlabelled" / "labels", table)
        self._say("   (pretrain.csv, columns file, subject and split: one subject in four validates; no labels)")
        for source, labels in (("unlabelled", table), ("eyes", self._out / "eyes" / "labels" / "eyes.csv")):
            found = self._do(
                prepare,
                "folder",
                self._out / source,
                labels=labels,
                out=self._out / f"{source}-store",
                key=self._out / "key",
                workers=0,
            )
            if found.skipped:
                raise ConfigError(f"{counted(sum(found.skipped.values()), 'simulated recording')} could not be stored")
            stored = found.found
            channels = ", ".join(map(str, stored.montages))
            self._say(f"   {counted(stored.recordings, 'recording')}, {60 * stored.hours:.0f} min, {channels} channels")

    def pretrain(self) -> float:
        """Pre-train, and return the masked error on subjects that were not trained on."""
        from cerebro_eeg.commands.pretrain import pretrain

        self._say("\n3. Pre-train without labels: half of all patches are masked, and the model fills them in")
        found = self._do(
            pretrain,
            (self._out / "unlabelled-store",),
            out=self._out / "pretrained",
            heard=True,
            preset="tiny",
            seconds=SECONDS,
            steps=self._size.steps,
            batch_size=32,
            lr=5e-3,
            seed=self._seed,
        )
        masked = found.validation["validation_masked"]
        self._say(
            f"   {found.steps:,} steps of {found.batch_size} windows in {in_time(found.seconds)}; masked error "
            f"{masked:.2f} of the variance, on other subjects (1.00: saying the mean)"
        )
        return masked

    def compare(self) -> tuple[MethodScores, ...]:
        """Learn the task in three ways, and score each on the test subjects."""
        from cerebro_eeg.commands.evaluate import evaluate
        from cerebro_eeg.commands.finetune import finetune

        self._say("\n4. Learn the task in three ways; score each once, on test subjects")
        store, pretrained = self._out / "eyes-store", str(self._out / "pretrained")
        trained = {"preset": "tiny", "epochs": self._size.task_epochs, "lr": 2e-3}
        ways: dict[str, tuple[str, dict[str, Any]]] = {
            "linear probe": ("probe", {"from_": pretrained, "freeze": True}),
            "full fine-tuning": ("finetuned", {"from_": pretrained, **trained}),
            "from scratch": ("scratch", {"from_": "none", **trained}),
        }
        rows = []
        for name, (folder, options) in ways.items():
            self._do(
                finetune,
                store,
                heard=not options.get("freeze"),
                task="eyes",
                out=self._out / folder,
                seconds=SECONDS,
                seed=self._seed,
                **options,
            )
            values = self._do(evaluate, self._out / folder, store).summary["levels"]["window"]["values"]
            scores = [
                ScoreInterval(*(values[metric][key] for key in ("mean", "low", "high", "chance")))
                for metric in ("balanced_accuracy", "auroc")
            ]
            rows.append(MethodScores(name, *scores))
            self._say(f"   {name}: balanced accuracy {scores[0].text()}, AUROC {scores[1].text()}")
        return tuple(rows)

    def predict(self) -> tuple[PredictedBlock, ...]:
        """Predict a recording of a subject who is in neither store."""
        from cerebro_eeg.commands.predict import predict
        from cerebro_eeg.commands.simulate import simulate

        self._say("\n5. Predict on a new recording")
        new, seed = self._out / "new", 3 * self._seed + 2
        self._do(simulate, new, subjects=1, minutes=2.0, tasks=("eyes",), montages=("10-20",), seed=seed)
        found = self._do(
            predict,
            str(self._out / "finetuned" / f"seed-{self._seed}"),
            (new,),
            out=self._out / "predicted",
            stride=1.0,
            plot=True,
            key=self._out / "key",
        )
        table = self._out / "predicted" / "predictions.csv"
        blocks = read_blocks(new / "labels" / "eyes.csv", table, found.about["names"], found.about["threshold"])
        for block in blocks:
            self._say(f"   {block.start:5.1f} s  {block.truth:11}  predicted {block.said}")
        return blocks

    def _do(self, verb: Callable[..., Found], *given: object, heard: bool = False, **options: object) -> Found:
        """Print the command of a call and make the call; its own lines on stderr appear only if ``heard``."""
        line = command_line(verb.__name__, given, options)
        self.commands.append(line)
        self._say(f"   $ {line}")
        with contextlib.nullcontext() if heard else contextlib.redirect_stderr(io.StringIO()):
            return verb(*given, **options)


def command_line(verb: str, given: tuple[object, ...], options: dict[str, object]) -> str:
    """Return the command line that equals a call of a verb's function."""

    def words(value: object) -> list[str]:
        return [
            f"{part:g}" if isinstance(part, float) else str(part)
            for part in (value if isinstance(value, tuple) else (value,))
        ]

    parts = ["cerebro-eeg", verb, *(word for value in given for word in words(value))]
    for name, value in options.items():
        parts += [f"--{name.rstrip('_').replace('_', '-')}", *([] if value is True else words(value))]
    return shlex.join(parts)


# The tables between the steps


def write_table(labels: Path, table: Path) -> None:
    """Write the table for the pre-training store: every file, its subject, and whether it trains or validates."""
    rows = {(row["file"], row["subject"], row["split"]) for path in labels.glob("*.csv") for row in _read(path)}
    lines = [f"{file},{subject},{'val' if split == 'val' else 'train'}" for file, subject, split in sorted(rows)]
    write_text(table, "\n".join(["file,subject,split", *lines]) + "\n")


def read_blocks(labels: Path, predictions: Path, names: list[str], threshold: float) -> tuple[PredictedBlock, ...]:
    """Return the class of each block: the last class if the mean probability of its windows reaches the threshold."""
    windows = _read(predictions)
    found = []
    for row in _read(labels):
        start, stop = float(row["start"]), float(row["stop"])
        inside = [
            float(window[f"probability {names[-1]}"])
            for window in windows
            if start <= float(window["start"]) and float(window["stop"]) <= stop
        ]
        if inside:
            said = names[sum(inside) / len(inside) >= threshold]
            found.append(PredictedBlock(start, row["label"], said, len(inside)))
    return tuple(found)


def count_task(out: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Count windows and subjects of the task, by split."""
    from cerebro_eeg.runs.folder import RunFolder

    windows = RunFolder(out / "finetuned").read()["settings"]["windows"][0]
    people = Counter(
        split for _, split in {(row["subject"], row["split"]) for row in _read(out / "eyes" / "labels" / "eyes.csv")}
    )
    return dict(zip(("train", "val", "test"), windows, strict=True)), dict(people)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
