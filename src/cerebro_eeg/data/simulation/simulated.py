"""simulate_recording: one recording of one subject at one montage, with everything that made it."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.reading.recording import Event, Samples
from cerebro_eeg.data.simulation.background import mains as mains_potentials
from cerebro_eeg.data.simulation.background import potentials
from cerebro_eeg.data.simulation.head import HOMOGENEOUS, electrode_positions, head, lead_field
from cerebro_eeg.data.simulation.montages import Montage, montage_of
from cerebro_eeg.data.simulation.schedule import TASKS, Task, schedule
from cerebro_eeg.data.simulation.sources import Source, named_sources, targets
from cerebro_eeg.data.simulation.subject import Subject, make_subject
from cerebro_eeg.data.simulation.waves import Clock
from cerebro_eeg.errors import ConfigError

SEEDS = 2**63


@dataclass(frozen=True)
class Simulated:
    """A recording and its truth."""

    signal_TC: Samples
    """Microvolts against the montage's reference."""
    channels: tuple[str, ...]
    """Canonical names of the columns; ``montage.labels`` is what a file calls them."""
    sfreq: int
    events: tuple[Event, ...]
    targets_TK: NDArray[np.float64] | None
    """Joint angles in degrees in the order of ``waves.ANGLES``; only of the task gait."""
    sources: tuple[Source, ...]
    """Those with a name; background, electrode noise and mains have none."""
    subject: Subject
    montage: Montage


def simulate_recording(
    seed: int,
    subject: int,
    montage: str | Montage = "10-20",
    sfreq: int | None = None,
    seconds: float = 60.0,
    task: Task = "eyes",
    mains: float = 50.0,
) -> Simulated:
    """Simulate one recording; the same arguments give the same samples, whatever else is simulated.

    Parameters
    ----------
    subject : number of the person; the same number is the same person in every recording of a seed.
    montage : a name of ``montages.MONTAGES``, or any Montage.
    sfreq : samples a second, a whole number from 64 to 4,096; None for the montage's own.
    task : what the person does: "eyes", "hands", "seizure" or "gait".
    mains : Hz of the mains; 0 for none.
    """
    chosen = montage_of(montage) if isinstance(montage, str) else montage
    rate = chosen.sfreq if sfreq is None else sfreq
    check_recording(seed, subject, rate, seconds, task, mains)
    clock, person = Clock(int(rate), seconds), make_subject(seed, subject)
    electrodes, weights_EC = chosen.weights()
    model = head(person.skull)
    events = schedule(seed, person, task, seconds)
    sources = tuple(named_sources(seed, person, task, events, clock))
    total_TE = potentials(seed, person, task, model, electrodes, clock)
    if mains:
        total_TE += mains_potentials(seed, person, task, mains, electrodes, clock)
    places_E3 = electrode_positions(electrodes)
    for of, inside in ((model, True), (HOMOGENEOUS, False)):
        group = [source for source in sources if source.in_brain is inside]
        field_SE3 = lead_field(of, np.array([source.position for source in group]), places_E3)
        gain_SE = np.einsum("sek,sk->se", field_SE3, np.array([source.moment for source in group])).astype(np.float32)
        total_TE += (
            np.stack([source.course for source in group], axis=1, dtype=np.float32, casting="same_kind") @ gain_SE
        )
    return Simulated(
        signal_TC=total_TE @ weights_EC.astype(np.float32),
        channels=chosen.channels,
        sfreq=clock.sfreq,
        events=events,
        targets_TK=targets(seed, person, task, clock),
        sources=sources,
        subject=person,
        montage=chosen,
    )


def check_recording(seed: int, subject: int, sfreq: float, seconds: float, task: str, mains: float) -> None:
    """Refuse what cannot be simulated."""
    if not 0 <= seed < SEEDS:
        raise ConfigError(f"seed is {seed}; expected a whole number from 0 to 2**63 - 1")
    if subject < 0:
        raise ConfigError(f"subject is {subject}; subjects are numbered from 0")
    if sfreq != int(sfreq) or not 64 <= sfreq <= 4096:
        raise ConfigError(f"the rate is {sfreq:g} Hz; expected a whole number from 64 to 4096")
    if not math.isfinite(seconds) or not 4 <= seconds <= 3600:
        raise ConfigError(f"a recording of {seconds:g} s was asked for; expected 4 to 3600")
    if task not in TASKS:
        raise ConfigError(f"there is no task {task!r}; the tasks are {', '.join(TASKS)}")
    if not 0 <= mains < 1000:
        raise ConfigError(f"mains is {mains:g}; expected a frequency in Hz, such as 50 or 60, or 0 for none")
