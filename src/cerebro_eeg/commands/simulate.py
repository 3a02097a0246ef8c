"""``cerebro-eeg simulate``: EDF+ files of simulated EEG with labels and known sources, to try all other verbs on."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from cerebro_eeg.errors import ConfigError
from cerebro_eeg.notebook import InFolder, by_column

_Key = TypeVar("_Key", str, int)


@dataclass(frozen=True, repr=False)
class SimulateResult(InFolder):
    """The recordings that were written."""

    recordings: int
    subjects: int
    seconds: int
    """Length of each recording."""
    montages: dict[str, int]
    """Recordings by montage."""
    rates: dict[int, int]
    """Recordings by sampling rate."""
    tasks: tuple[str, ...]
    splits: dict[str, int]
    """Subjects by split."""
    seed: int
    folder: str = field(compare=False)

    def to_dict(self) -> dict[str, object]:
        found = asdict(self)
        del found["folder"]
        return {**found, "rates": {str(rate): count for rate, count in self.rates.items()}}

    def _headline(self) -> str:
        return f"{self.recordings:,} recordings of {self.subjects:,} subjects, {self.seconds} s each, in {self.folder}"

    def _columns(self) -> Mapping[str, Sequence[Any]]:
        """Return one row per group: how many recordings have each montage and rate, how many subjects each split."""
        groups: dict[str, Mapping[Any, int]] = {"montage": self.montages, "rate": self.rates, "split": self.splits}
        return by_column(
            {"what": what, "which": str(name), "count": count}
            for what, of in groups.items()
            for name, count in of.items()
        )

    def text(self) -> str:
        def counted(of: dict[str, int] | dict[int, int], unit: str = "") -> str:
            return ", ".join(f"{name}{unit} ({count})" for name, count in of.items())

        return "\n".join(
            [
                f"simulated {self.recordings} recordings of {self.subjects} subjects, {self.seconds} s each, seed "
                f"{self.seed}",
                f"  montages  {counted(self.montages)}",
                f"  rates     {counted(self.rates, ' Hz')}",
                f"  labels    {', '.join(f'labels/{task}.csv' for task in self.tasks)}",
                f"  splits    {counted(self.splits)}, by subject",
                "  truth     truth.json: parameters of every subject, place and moment of every source",
            ]
        )


def simulate(
    out: Path,
    /,
    *,
    subjects: int = 4,
    minutes: float = 2.0,
    seed: int = 0,
    montages: tuple[str, ...] = ("10-20", "32", "64", "muse"),
    rates: tuple[int, ...] = (),
    tasks: tuple[Literal["eyes", "hands", "seizure", "gait"], ...] = ("eyes", "hands", "seizure", "gait"),
    mains: Literal[50, 60] = 50,
) -> SimulateResult:
    """Simulate EEG with known truth: one EDF+ file a subject and task, with annotations, labels and what made it.

    Dipoles in a head of four shells give a 1/f background, alpha that blocks with eyes open, mu that falls over the
    hand area opposite to a moving hand, 3 Hz spike-and-wave seizures and potentials that follow the joints in walking;
    blinks, muscles and mains come on top. The same arguments give the same files.

    Try, for example:
      cerebro-eeg simulate my-eeg
      cerebro-eeg simulate my-eeg --subjects 10 --montages 10-20 bipolar --rates 256 500 --tasks eyes

    Args:
        out: The folder to write to; it must be new or empty.
        subjects: People to simulate; they differ in rhythms, amplitudes, skull and noise.
        minutes: Length of each recording.
        seed: Of everything random.
        montages: Of the subjects in turn: 10-20, 32, 64, muse, epoc, bipolar.
        rates: Hz, of the subjects in turn; without it, what each montage is usually recorded at.
        tasks: What a subject does, each in a recording of its own.
        mains: Mains frequency in Hz.
    """
    from cerebro_eeg.data.simulation import corpus
    from cerebro_eeg.data.simulation.head import montage_of
    from cerebro_eeg.data.simulation.recording import check_recording

    if not 1 <= subjects <= 10_000:
        raise ConfigError(f"subjects is {subjects}; expected 1 to 10,000")
    for what, values in (("montages", montages), ("tasks", tasks)):
        if not values or len(set(values)) < len(values):
            raise ConfigError(f"{what} is empty or names something twice; name each once, and at least one")
    for montage in montages:
        montage_of(montage)
    seconds = round(60 * minutes) if 0 < minutes < 1e6 else 0
    for rate in rates or (256,):
        for task in tasks:
            check_recording(seed, 0, rate, seconds, task, mains)
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise ConfigError("the folder to write to is a file or not empty; nothing is overwritten: name a new folder")
    plans = corpus.plan(subjects, tasks, montages, rates)
    progress = _Progress()
    try:
        corpus.write_corpus(out, plans, seed, seconds, mains, progress)
    finally:
        progress.end()
    return SimulateResult(
        recordings=len(plans),
        subjects=subjects,
        seconds=seconds,
        montages=_count(item.montage for item in plans),
        rates=_count(item.sfreq for item in plans),
        tasks=tuple(tasks),
        splits=_count(split for _, split in sorted({(item.subject, item.split) for item in plans})),
        seed=seed,
        folder=str(out),
    )


def _count(values: Iterable[_Key]) -> dict[_Key, int]:
    return dict(sorted(Counter(values).items(), key=lambda entry: str(entry[0])))


class _Progress:
    """Prints how far it is on stderr: one line that changes or, in a log, a new line every few seconds."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._start = self._last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last < (0.2 if self._live else 5.0):
            return
        self._last = now
        left = (now - self._start) / done * (total - done) if done else 0.0
        line = f"{done:,}/{total:,} recordings" + (f", {left:,.0f} s left" if done else "")
        print(f"\r\x1b[K{line}" if self._live else line, end="" if self._live else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
