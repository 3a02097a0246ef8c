"""Mini: reduced models and simulated stand-ins for the corpora, with which every recipe runs in seconds on a CPU.

The numbers show that a recipe works from end to end, and say nothing about the paper. The stores are written directly,
without files and filters, which have demos and tests of their own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cerebro_eeg.config import SignalConfig
from cerebro_eeg.data.simulation.corpus import split_of
from cerebro_eeg.data.simulation.head import Montage
from cerebro_eeg.data.simulation.recording import LABELS, Simulated, SimulatedTask, simulate_recording
from cerebro_eeg.data.simulation.waves import ANGLES
from cerebro_eeg.data.storing.records import Interval
from cerebro_eeg.data.storing.store_info import create_store
from cerebro_eeg.data.storing.writer import ShardWriter
from cerebro_eeg.schema import to_dict

SIZES = {"small": (2, 16, 2), "base": (2, 24, 3), "large": (4, 32, 4)}
"""Depth, width and heads of the reduced model of each size."""
CHANNELS = ("Fp1", "C3", "C4", "Pz", "O1", "O2")
STEPS, BATCH, SEEDS, RESAMPLES = 3, 8, 2, 100
SEED = 5
WARNING = "These numbers say that the recipe runs, and nothing else; they compare with nothing."


@dataclass(frozen=True)
class StandIn:
    """A simulated corpus of the same kind as a real one: rate, windows, classes or values, splits or folds."""

    tasks: tuple[SimulatedTask, ...]
    """The tasks of the simulated people, one recording per task."""
    classes: Mapping[str, str]
    """The class of each simulated event."""
    rate: int = 256
    seconds: float = 5.0
    """Length of a window."""
    stride: float = 5.0
    length: int = 30
    """Seconds of a recording."""
    subjects: int = 5
    folds: bool = False


STAND_INS: Mapping[str, StandIn] = {
    "tuab": StandIn(("eyes",), {"eyes_closed": "closed", "eyes_open": "open"}),
    "seed": StandIn(
        ("eyes", "hands"),
        {"eyes_closed": "closed", "eyes_open": "open", "left_hand": "moving", "right_hand": "moving"},
        rate=200,
        seconds=1.0,
        stride=1.0,
        length=16,
    ),
    "neonate": StandIn(("seizure",), {"background": "background", "seizure": "seizure"}, length=60, folds=True),
    "mobi": StandIn(("gait",), {}, rate=100, seconds=2.0, stride=0.5, length=12),
}
_UNLABELLED = StandIn(("eyes",), {}, length=20, subjects=2)


def flags(size: str) -> dict[str, Any]:
    """Return the settings that reduce the preset of a size, with small batches."""
    depth, width, heads = SIZES[size]
    return {
        "model.depth": depth,
        "model.width": width,
        "model.heads": heads,
        "pretrain.batch_size": BATCH,
        "finetune.batch_size": BATCH,
    }


def describe() -> str:
    """Describe the reduced models."""
    sizes = "; ".join(f"{name}: depth {d}, width {w}, {h} heads" for name, (d, w, h) in SIZES.items())
    return f"reduced models ({sizes})"


def simulate_store(folder: Path, corpus: str, task: str, place: int) -> str:
    """Write the stand-in of a corpus and describe it; ``place`` gives each corpus people of its own."""
    chosen = STAND_INS.get(corpus, _UNLABELLED)
    declared: dict[str, Any] = {}
    if corpus in STAND_INS:
        names = list(dict.fromkeys(chosen.classes.values())) or list(ANGLES)
        kind = "classification" if chosen.classes else "regression"
        declared[task] = {"kind": kind, "names": names, "seconds": chosen.seconds, "stride": chosen.stride}
    signal = to_dict(SignalConfig(sfreq=float(chosen.rate)))
    settings = {"tasks": declared, "split_unit": "subject", "signal": signal, "recipe": "mini"}
    create_store(folder, f"mini-{corpus}", settings)
    with ShardWriter(folder, "mini") as writer:
        for number in range(chosen.subjects):
            for doing in chosen.tasks:
                _write(writer, chosen, corpus, task, doing, number, 100 * place + number)
    what = ", ".join(declared[task]["names"]) if declared else "unlabelled"
    return f"{corpus}: {chosen.subjects} people, {len(CHANNELS)} channels at {chosen.rate} Hz, {what}"


def _write(
    writer: ShardWriter, chosen: StandIn, corpus: str, task: str, doing: SimulatedTask, number: int, person: int
) -> None:
    montage = Montage(CHANNELS, "linked ears", chosen.rate)
    id = f"{corpus}-{number}-{doing}"
    if id in writer.ids:  # the store is there from an earlier call
        return
    made = simulate_recording(SEED, person, montage, seconds=chosen.length, task=doing, mains=0.0)
    split = f"fold{number + 1}" if chosen.folds else split_of(number, chosen.subjects)
    with writer.recording(id, made.channels, float(chosen.rate)) as draft:
        draft.segment(0.0)
        draft.write(made.signal_TC)
        intervals = list(_intervals(chosen, doing, made, split))
        draft.commit(
            native_sfreq=float(chosen.rate),
            subject=f"person-{person}",
            labels={task: intervals} if intervals else {},
        )


def _intervals(chosen: StandIn, doing: SimulatedTask, made: Simulated, split: str) -> Iterator[Interval]:
    for event in made.events if chosen.classes else ():
        if event.name in LABELS[doing]:
            yield Interval(event.onset, event.onset + event.duration, split, chosen.classes[event.name])
    if made.targets_TK is not None:
        for number in range(int(chosen.length / chosen.stride)):
            stop = (number + 1) * chosen.stride
            values = made.targets_TK[round(stop * made.sfreq) - 1].round(4).tolist()
            yield Interval(number * chosen.stride, stop, split, None, tuple(values))
