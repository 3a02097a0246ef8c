"""``cerebro-eeg demo``: from EEG files to a prediction, on simulated EEG, by commands that anyone can type.

Every step calls the function of another verb, and the command line that is printed is made from that very call.

Two questions are asked of the same people, of whom four have labels. Whether the eyes are open is told by a rhythm that
differs between people. Which hand moves is told by power alone. Nothing here decides who wins: rows, verdicts and
choices are read from the runs.
"""

import contextlib
import csv
import io
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from cerebro_eeg.errors import ConfigError, StoppedError
from cerebro_eeg.files import parse_json, write_text
from cerebro_eeg.progress import Progress, counted, in_time, unheard
from cerebro_eeg.terminal import CsvWriter

SECONDS = 2.0  # length of a window
MONTAGES = ("10-20", "epoc")
QUESTIONS = {"eyes": "Are the eyes open?", "hands": "Which hand moves?"}
SEEDS = 2**40
Found = TypeVar("Found")


@dataclass(frozen=True)
class DemoSize:
    """How much is simulated and trained."""

    people: int
    labelled: int
    """People whose labels are learned from, the last of them for validation; labels of the others only score."""
    minutes: float
    epochs: int
    """Of the model that is trained from scratch."""


FULL = DemoSize(people=20, labelled=4, minutes=1.0, epochs=20)
QUICK = DemoSize(people=4, labelled=3, minutes=0.5, epochs=1)


@dataclass(frozen=True)
class ScoreInterval:
    """A score on the test subjects, or a difference of two, with its 95 % interval over subjects."""

    value: float | None
    low: float | None
    high: float | None

    def text(self, sign: str = "") -> str:
        """Return the numbers as text; ``sign`` is "+" for a difference."""
        value, low, high = (
            "n/a" if number is None else f"{number:{sign}.3f}" for number in (self.value, self.low, self.high)
        )
        return value if self.low is None or self.high is None else f"{value} ({low} to {high})"


@dataclass(frozen=True)
class MethodScores:
    """The score of one way to learn a task."""

    name: str
    auroc: ScoreInterval
    behind: ScoreInterval | None
    """The first row of the table minus this one, over the same subjects; None for the first row itself."""


@dataclass(frozen=True)
class DemoTask:
    """A question, and how each way to learn it did on people whose labels were not used."""

    name: str
    windows: dict[str, int]
    """Windows, by split."""
    subjects: dict[str, int]
    chosen: str
    """The read-out that cross-validation over the labelled people chose."""
    rows: tuple[MethodScores, ...]
    """What was learned from small-open with the head that was chosen comes first."""
    verdict: str

    def lines(self) -> list[str]:
        """Return the table as text."""
        labelled, known = self.subjects["train"] + self.subjects["val"], self.subjects["test"]
        counts = f"{self.windows['train'] + self.windows['val']:,} and {self.windows['test']:,} windows"
        asked = f"{QUESTIONS[self.name]} Learned from {labelled} people, scored once on {counted(known, 'other')}"
        return [
            f"{asked} ({counts})",
            f"  {'':30}{'AUROC':24}first row minus this",
            *(
                f"  {row.name:30}{row.auroc.text():24}{row.behind.text('+') if row.behind else ''}".rstrip()
                for row in self.rows
            ),
            f"  The head chosen is {self.chosen}; {self.verdict}.",
        ]


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
    tasks: tuple[DemoTask, ...]
    blocks: tuple[PredictedBlock, ...]
    reports: tuple[str, ...]
    commands: tuple[str, ...]
    seconds: float

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    def text(self) -> str:
        right = sum(block.said == block.truth for block in self.blocks)
        lines = [
            *(line for task in self.tasks for line in (*task.lines(), "")),
            f"New recording: {right} of {counted(len(self.blocks), 'block')} named rightly.",
            "Brackets are 95 % intervals over test people; where that of a difference holds 0, nobody is ahead. All "
            "heads but that from scratch may be centred per person, without labels.",
            f"Seed {self.seed}: another --seed is other people, and another may win. Simulated EEG is simpler than "
            "anybody's: the numbers say that the parts work, not how well on your data."
            + (" With --quick the scores mean nothing." if self.quick else ""),
            *(f"Report: {report}" for report in self.reports),
            f"Done in {in_time(self.seconds)}. The commands above work on your own files; start with prepare. To learn "
            "from your own unlabelled recordings first: cerebro-eeg pretrain STORE --out RUN, then --from RUN.",
            "Such a table of your own store, with more rivals: cerebro-eeg compare STORE --out COMPARISON --quick",
        ]
        return "\n".join(lines)


def demo(*, out: Path = Path("cerebro-demo"), seed: int = 0, quick: bool = False, open: bool = False) -> DemoResult:
    """Simulate EEG, prepare it, teach small-open two tasks with few labels, score them, predict: in minutes on a CPU.

    Four people with a minute of labelled EEG teach whether the eyes are open and which hand moves; sixteen others test
    it. Beside the weights that come with the package stand simple features, random weights and a model from scratch,
    and the text at the end says who won.

    Try, for example:
      cerebro-eeg demo --open

    Args:
        out: The folder for all of it; it must be new or empty.
        seed: Of subjects, weights and order.
        quick: As little of everything as runs, to see the steps: the scores mean nothing.
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
            tasks = steps.compare()
            blocks = steps.predict()
    except StoppedError as error:
        raise StoppedError(f"stopped; delete {out} and start again, or go on with the last command shown") from error
    pages = [out / f"{task}-default" / "report.html" for task in QUESTIONS]
    reports = tuple(str(page) for page in pages if page.exists())
    if open and reports:
        import webbrowser

        webbrowser.open(Path(reports[0]).absolute().as_uri())
    seconds = time.monotonic() - began
    return DemoResult(str(out), seed, quick, tasks, blocks, reports, tuple(steps.commands), seconds)


class _Steps:
    """The steps of the demo; each prints what it does on stderr."""

    def __init__(self, out: Path, size: DemoSize, seed: int) -> None:
        self._out, self._size, self._seed = out, size, seed
        self._say = Progress().say
        self.commands: list[str] = []

    def simulate(self) -> None:
        """Simulate the two tasks; with the same seed they are of the same people."""
        from cerebro_eeg.commands.simulate import simulate

        self._say("1. Simulate EEG as EDF files: people who open and close their eyes, and move their hands")
        found = [
            self._do(
                simulate,
                self._out / task,
                subjects=self._size.people,
                minutes=self._size.minutes,
                tasks=(task,),
                montages=MONTAGES,
                seed=2 * self._seed,
            )
            for task in QUESTIONS
        ]
        for part in found:
            rates = ", ".join(str(rate) for rate in sorted(part.rates))
            self._say(
                f"   {counted(part.recordings, 'file')} of {counted(part.subjects, 'subject')}, montages "
                f"{', '.join(part.montages)}, at {rates} Hz"
            )

    def prepare(self) -> None:
        """Make a store of each task, with a table of labels that says who is labelled and who tests."""
        from cerebro_eeg.commands.prepare import PrepareResult, prepare

        self._say("\n2. Prepare both: filter, notch, resample to 256 Hz, store")
        # Ids decide the order of training. A key made from the seed lets the numbers repeat; nothing here is secret.
        write_text(self._out / "key", f"{self._seed:064x}\n")
        (self._out / "key").chmod(0o600)
        labelled = self._size.labelled
        self._say(f"   (in the tables of labels, {labelled} people train and validate, and all others only test)")
        for task in QUESTIONS:
            table = self._out / f"{task}.csv"
            write_table(self._out / task / "labels" / f"{task}.csv", table, labelled)
            found = self._do(
                prepare,
                "folder",
                self._out / task,
                labels=table,
                out=self._out / f"{task}-store",
                key=self._out / "key",
                workers=0,
            )
            assert isinstance(found, PrepareResult)
            if found.skipped:
                raise ConfigError(f"{counted(sum(found.skipped.values()), 'simulated recording')} could not be stored")
            stored = found.found
            channels = ", ".join(map(str, stored.montages))
            self._say(f"   {counted(stored.recordings, 'recording')}, {60 * stored.hours:.0f} min, {channels} channels")

    def compare(self) -> tuple[DemoTask, ...]:
        """Learn each task in several ways, and score each on the test subjects, beside simple features."""
        ways: dict[str, tuple[str, dict[str, Any]]] = {
            "default": ("small-open, head chosen", {"from_": "small-open", "freeze": True}),
            "random": ("random weights, head chosen", {"from_": "none", "freeze": True}),
            "mean": ("small-open, mean", {"from_": "small-open", "freeze": True, "readout": "mean"}),
            "random-mean": ("random weights, mean", {"from_": "none", "freeze": True, "readout": "mean"}),
            "scratch": ("from scratch", {"from_": "none", "preset": "tiny", "epochs": self._size.epochs, "lr": 2e-3}),
        }
        self._say(
            "\n3. Learn from few labels whether the eyes are open, in five ways; score each once, on test subjects\n"
            "   (frozen weights small-open with the head that cross-validation chooses, which may read simple\n"
            "   features beside them or alone, or with the paper's, the mean of all tokens; the same on random\n"
            "   weights; a tiny model from scratch)"
        )
        eyes = self._learn("eyes", ways)
        self._say("\n4. Learn which hand moves, from the same people")
        return eyes, self._learn("hands", {name: ways[name] for name in ("default", "mean")})

    def _learn(self, task: str, ways: Mapping[str, tuple[str, dict[str, Any]]]) -> DemoTask:
        from cerebro_eeg.commands.evaluate import evaluate
        from cerebro_eeg.commands.finetune import finetune
        from cerebro_eeg.runs.rivals import verdict
        from cerebro_eeg.scores.paired import paired
        from cerebro_eeg.scores.predictions import Predictions

        store, rows, answers = self._out / f"{task}-store", list[MethodScores](), list[Predictions]()
        rivals: Sequence[Mapping[str, Any]] = ()
        for folder, (name, options) in ways.items():
            run = self._out / f"{task}-{folder}"
            # The same simple rivals stand beside every run; one run is enough to show them.
            beside = {"rivals": False} if answers else {}
            self._do(finetune, store, task=task, out=run, seconds=SECONDS, seed=self._seed, rivals=False, **options)
            found = self._do(evaluate, run, store, **beside)
            rivals = rivals or found.rivals or ()
            answers.append(Predictions.load(run / f"seed-{self._seed}" / "test.npz"))
            score = found.summary["levels"]["window"]["values"]["auroc"]
            auroc = ScoreInterval(score["mean"], score["low"], score["high"])
            rows.append(
                MethodScores(name, auroc, interval_of(asdict(paired(answers[:1], answers[-1]))) if rows else None)
            )
            self._say(f"   {name}: AUROC {auroc.text()}")
        chosen = parse_json((self._out / f"{task}-default" / f"seed-{self._seed}" / "probe.json").read_text("utf-8"))
        simple = [
            MethodScores(row["name"], ScoreInterval(row["rival"], None, None), interval_of(row)) for row in rivals
        ]
        return DemoTask(
            task, *count_task(self._out, task), chosen["name"], (rows[0], *simple, *rows[1:]), verdict(rivals)
        )

    def predict(self) -> tuple[PredictedBlock, ...]:
        """Predict a recording of a subject who is in neither store."""
        from cerebro_eeg.commands.predict import predict
        from cerebro_eeg.commands.simulate import simulate

        self._say("\n5. Predict on a new recording: are the eyes open?")
        new, seed = self._out / "new", 2 * self._seed + 1
        self._do(simulate, new, subjects=1, minutes=2.0, tasks=("eyes",), montages=("10-20",), seed=seed)
        found = self._do(
            predict,
            str(self._out / "eyes-default"),
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

    def _do(self, verb: Callable[..., Found], *given: object, **options: object) -> Found:
        """Print the command of a call and make the call, without its own lines on stderr."""
        line = command_line(verb.__name__, given, options)
        self.commands.append(line)
        self._say(f"   $ {line}")
        with contextlib.redirect_stderr(io.StringIO()):
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
        flag = name.rstrip("_").replace("_", "-")
        parts += [f"--no-{flag}"] if value is False else [f"--{flag}", *([] if value is True else words(value))]
    return shlex.join(parts)


def interval_of(pair: Mapping[str, Any]) -> ScoreInterval:
    """Return the paired difference of two models."""
    return ScoreInterval(pair["difference"], pair["low"], pair["high"])


# The tables between the steps


def write_table(labels: Path, table: Path, labelled: int) -> None:
    """Copy a table of labels with other splits: the first subjects train, the last labelled one validates."""
    rows = _read(labels)
    place = {subject: number for number, subject in enumerate(sorted({row["subject"] for row in rows}), 1)}
    text = io.StringIO()
    writer = CsvWriter(text)
    writer.writerow(rows[0])
    for row in rows:
        number = place[row["subject"]]
        split = "train" if number < labelled else "val" if number == labelled else "test"
        writer.writerow({**row, "split": split}.values())
    write_text(table, text.getvalue())


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


def count_task(out: Path, task: str) -> tuple[dict[str, int], dict[str, int]]:
    """Count windows and subjects of a task, by split."""
    from cerebro_eeg.runs.folder import RunFolder

    windows = RunFolder(out / f"{task}-default").read()["settings"]["windows"][0]
    people = Counter(split for _, split in {(row["subject"], row["split"]) for row in _read(out / f"{task}.csv")})
    return dict(zip(("train", "val", "test"), windows, strict=True)), dict(people)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
