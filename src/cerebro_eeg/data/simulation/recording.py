"""Simulates one recording of one subject at one montage, with everything that made it.

Each task is a way to spend a recording: eyes, hands, seizures or walking, with blinks and muscles. Times are in
seconds. Its events are the truth that goes into the file as annotations; its labels are the intervals that a model is
trained on. Starts and lengths are whole or half seconds where a person would be instructed, so that windows of whole
seconds fit.

A source is a current dipole at a place with a direction and a time course. Sources with a name are alpha, mu, beta,
theta, blinks, muscles, seizures, and potentials that follow the legs. Their moments give a subject with an average
skull the amplitudes of textbooks on the scalp: 30 microvolts of alpha, blinks of 100, spike and wave of 300.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.reading.recording import Event, Samples
from cerebro_eeg.data.simulation import waves
from cerebro_eeg.data.simulation.head import (
    HOMOGENEOUS,
    Floats,
    Montage,
    Subject,
    electrode_positions,
    generator,
    head,
    lead_field,
    make_subject,
    montage_of,
)
from cerebro_eeg.data.simulation.waves import SampleTimes, potentials
from cerebro_eeg.data.simulation.waves import mains as mains_potentials
from cerebro_eeg.errors import ConfigError

SimulatedTask = Literal["eyes", "hands", "seizure", "gait"]
TASKS: tuple[SimulatedTask, ...] = get_args(SimulatedTask)
LABELS: Mapping[SimulatedTask, tuple[str, ...]] = {
    "eyes": ("eyes_closed", "eyes_open"),
    "hands": ("left_hand", "right_hand"),
    "seizure": ("background", "seizure"),
    "gait": (),
}
"""The events that are classes of a task; gait is a regression and has none."""
BLINK_SECONDS = 0.4


def schedule(seed: int, subject: Subject, task: SimulatedTask, seconds: float) -> tuple[Event, ...]:
    """Return every event of a recording, by onset."""
    rng = generator(seed, subject.number, task, "schedule")
    events = _SCHEDULES[task](rng, seconds)
    closed = [event for event in events if event.name == "eyes_closed"]
    events += _blinks(generator(seed, subject.number, task, "blinks"), subject, seconds, closed)
    events += _muscle(generator(seed, subject.number, task, "muscle"), seconds)
    return tuple(sorted(events, key=lambda event: (event.onset, event.name)))


def _eyes(rng: np.random.Generator, seconds: float) -> list[Event]:
    """Return blocks of 12 to 18 s, at least one with eyes open and one with eyes closed."""
    events, at, closed = [], 0.0, bool(rng.integers(2))
    while at < seconds:
        length = min(float(rng.integers(12, 19)), max(2.0, seconds // 2))
        if seconds - at - length < 6 and at > 0:  # no stub at the end
            length = seconds - at
        length = min(length, seconds - at)
        events.append(Event(at, length, "eyes_closed" if closed else "eyes_open"))
        at, closed = at + length, not closed
    return events


def _hands(rng: np.random.Generator, seconds: float) -> list[Event]:
    """Return six seconds of movement and three or four of rest in turn; of two trials one is left and one right."""
    events = [Event(0.0, seconds, "eyes_open")]
    at = float(rng.integers(4, 7)) / 2
    pair: list[str] = []
    while at + 6 <= seconds:
        if not pair:
            pair = ["left_hand", "right_hand"] if rng.integers(2) else ["right_hand", "left_hand"]
        events.append(Event(at, 6.0, pair.pop()))
        at += 6 + float(rng.integers(6, 9)) / 2
    return events


def _seizure_times(rng: np.random.Generator, seconds: float) -> list[Event]:
    """Return one seizure per minute, 8 to 20 s long, each somewhere in its own stretch of the recording."""
    events = [Event(0.0, seconds, "eyes_closed")]
    count = max(1, round(seconds / 60))
    stretch = seconds / count
    end = 0.0
    for number in range(count):
        length = min(float(rng.integers(8, 21)), max(1.0, stretch // 3))
        first, last = number * stretch + stretch / 8, (number + 1) * stretch - stretch / 8 - length
        onset = round(float(rng.uniform(first, last)) * 2) / 2
        events += [Event(end, onset - end, "background"), Event(onset, length, "seizure")]
        end = onset + length
    return [*events, Event(end, seconds - end, "background")]


def _gait(rng: np.random.Generator, seconds: float) -> list[Event]:
    return [Event(0.0, seconds, "eyes_open"), Event(0.0, seconds, "walking")]


_SCHEDULES: Mapping[SimulatedTask, Callable[[np.random.Generator, float], list[Event]]] = {
    "eyes": _eyes,
    "hands": _hands,
    "seizure": _seizure_times,
    "gait": _gait,
}


def _blinks(rng: np.random.Generator, subject: Subject, seconds: float, closed: list[Event]) -> list[Event]:
    """Return blinks while the eyes are open, at least a second apart."""
    events: list[Event] = []
    at = 0.0
    while True:
        at = round(at + 1 + float(rng.exponential(60 / subject.blinks_per_minute)), 3)
        if at + BLINK_SECONDS > seconds:
            return events
        if not any(event.onset - 0.5 < at < event.onset + event.duration for event in closed):
            events.append(Event(at, BLINK_SECONDS, "blink"))


def _muscle(rng: np.random.Generator, seconds: float) -> list[Event]:
    """Return bursts of muscles, about two per minute."""
    events: list[Event] = []
    at = 0.0
    while True:
        at = round(at + 4 + float(rng.exponential(26)), 3)
        length = round(float(rng.uniform(0.5, 2.0)), 3)
        if at + length > seconds:
            return events
        events.append(Event(at, length, "muscle"))


Draws = Callable[..., np.random.Generator]
CORTEX = 0.62  # of the radius: a patch of some square centimetres at the surface acts like a dipole below it
LEAD = 0.1  # seconds that the brain is ahead of the legs


@dataclass(frozen=True)
class CorticalSource:
    """A dipole: ``moment`` in nA m (x, y, z) times ``course`` (time) is its strength."""

    name: str
    position: Floats
    """Position in radii of the head."""
    moment: Floats
    course: Floats
    in_brain: bool = True
    """Whether it lies below the skull; eyes and muscles do not."""


def named_sources(
    seed: int, subject: Subject, task: SimulatedTask, events: tuple[Event, ...], clock: SampleTimes
) -> Iterator[CorticalSource]:
    """Return all sources with a name of one recording."""

    rng = functools.partial(generator, seed, subject.number, task)

    def during(*names: str) -> list[Event]:
        return [event for event in events if event.name in names]

    closed_T = waves.gate(during("eyes_closed"), clock)
    calm_T = 1 - 0.8 * waves.gate(during("seizure"), clock)
    yield from _alpha(subject, rng, clock, (0.28 + 0.72 * closed_T) * calm_T)
    for side, move, other in (("left", "right_hand", "left_hand"), ("right", "left_hand", "right_hand")):
        moves_T, others_T = waves.gate(during(move), clock, 0.6), waves.gate(during(other), clock, 0.6)
        walks_T = waves.gate(during("walking"), clock)
        gate_T = (1 - 0.75 * moves_T) * (1 - 0.15 * others_T) * (1 - 0.5 * walks_T) * calm_T
        yield from _sensorimotor(subject, side, rng, clock, gate_T)
    yield from _theta(rng, clock, calm_T)
    lids_T = waves.blinks(during("blink"), rng("lids"), clock)
    for side, x in (("left", -0.22), ("right", 0.22)):
        eye, up = np.array([x, 0.50, -0.20]), np.array([0.0, 0.85, 0.53])
        yield CorticalSource(f"eye_{side}", eye, 320 * up, lids_T, in_brain=False)
    yield from _muscles(subject, rng, clock, waves.gate(during("muscle"), clock, 0.3))
    for event in during("seizure"):
        yield from _seizure(subject, event, clock)
    if task == "gait":
        yield from _legs(subject, rng, clock)


def targets(seed: int, subject: Subject, task: SimulatedTask, clock: SampleTimes) -> Floats | None:
    """Return joint angles (time, angle) in degrees, where the task has them."""
    if task != "gait":
        return None
    return waves.angles(generator(seed, subject.number, task, "legs"), clock, subject.stride_hz)


def _at(electrode: str, depth: float = CORTEX) -> tuple[Floats, Floats]:
    """Return the place below an electrode, and the direction to it."""
    out = electrode_positions([electrode])[0]
    return out * depth, out


def _alpha(subject: Subject, rng: Draws, clock: SampleTimes, gate_T: Floats) -> Iterator[CorticalSource]:
    """Make alpha of two hemispheres that mostly agree; it travels from occipital to parietal and central cortex."""
    both = waves.rhythm(rng("alpha"), clock)
    for side, names in (("left", "O1 PO7 P3 CP1"), ("right", "O2 PO8 P4 CP2")):
        envelope = 0.8 * both + 0.6 * waves.rhythm(rng("alpha", side), clock)
        for name, delay, share in zip(names.split(), (0.0, 0.008, 0.018, 0.03), (1.0, 0.7, 0.55, 0.25), strict=True):
            position, out = _at(name)
            course = gate_T * waves.oscillation(envelope, clock, subject.alpha_hz, delay, 0.12)
            yield CorticalSource(f"alpha_{name}", position, 45 * subject.alpha * share * out, course)


def _sensorimotor(
    subject: Subject, side: str, rng: Draws, clock: SampleTimes, gate_T: Floats
) -> Iterator[CorticalSource]:
    """Make mu and beta of each hand area, which fall while the other side's hand moves, independent by hemisphere."""
    hand, behind = ("C3", "CP3") if side == "left" else ("C4", "CP4")
    mu, beta = waves.rhythm(rng("mu", side), clock), waves.rhythm(rng("beta", side), clock, 1.2)
    for name, delay, share in ((hand, 0.0, 1.0), (behind, 0.012, 0.5)):
        position, out = _at(name)
        course = gate_T * waves.oscillation(mu, clock, subject.mu_hz, delay, 0.35)
        yield CorticalSource(f"mu_{name}", position, 32 * subject.mu * share * out, course)
    position, out = _at("FC3" if side == "left" else "FC4")
    course = gate_T * waves.oscillation(beta, clock, 2 * subject.mu_hz + 1.5, 0.0, 0.0)
    yield CorticalSource(f"beta_{side}", position, 14 * subject.mu * out, course)


def _theta(rng: Draws, clock: SampleTimes, gate_T: Floats) -> Iterator[CorticalSource]:
    """Make theta of the frontal midline, travelling backward."""
    envelope = waves.rhythm(rng("theta"), clock, 0.5)
    for name, delay, share in (("AFz", 0.0, 0.8), ("Fz", 0.02, 1.0), ("FCz", 0.04, 0.7)):
        position, out = _at(name)
        yield CorticalSource(
            f"theta_{name}", position, 18 * share * out, gate_T * waves.oscillation(envelope, clock, 6.1, delay, 0.0)
        )


def _muscles(subject: Subject, rng: Draws, clock: SampleTimes, gate_T: Floats) -> Iterator[CorticalSource]:
    """Make the temporal muscles: a little all the time, with bursts, above 20 Hz."""
    for side, places in (("left", ("FT7", "T7")), ("right", ("FT8", "T8"))):
        loud = rng("burst", side).uniform(0.3, 1.0)
        for name in places:
            frequency_F = clock.frequencies
            shape_F = frequency_F**4 / (frequency_F**4 + 35.0**4) / np.sqrt(1 + (frequency_F / 110) ** 4)
            noise_T = waves.to_time(
                waves.white(rng("muscle", name), clock, 1) * shape_F[:, None].astype(np.float32), clock
            )
            position, out = _at(name, 0.8)
            course = (0.06 + loud * gate_T) * noise_T[:, 0]
            yield CorticalSource(f"muscle_{name}", position, 2.5 * subject.muscle * out, course, in_brain=False)


def _seizure(subject: Subject, event: Event, clock: SampleTimes) -> Iterator[CorticalSource]:
    """Make a seizure in both hemispheres at once, strongest in front; it reaches the back a little later."""
    spread = {"Fz": 1.0, "F3 F4 Cz": 0.8, "C3 C4 Fp1 Fp2": 0.5, "P3 P4 F7 F8": 0.35, "O1 O2": 0.25}
    for step, (names, share) in enumerate(spread.items()):
        for name in names.split():
            position, out = _at(name, 0.5)
            course = waves.spikes_and_waves(event, clock, subject.seizure_hz, 0.005 * step)
            yield CorticalSource(f"seizure_{name}", position, 480 * share * out, course)


def _legs(subject: Subject, rng: Draws, clock: SampleTimes) -> Iterator[CorticalSource]:
    """Make slow potentials of the leg areas, each following an angle of the other side's leg, ``LEAD`` ahead of it."""
    ahead = waves.angles(rng("legs"), clock, subject.stride_hz, LEAD)
    centred = (ahead - ahead.mean(axis=0)) / ahead.std(axis=0)
    for column, (angle, name) in enumerate(zip(waves.ANGLES, "C2 CP2 FC2 C1 CP1 FC1".split(), strict=True)):
        position, out = _at(name)
        yield CorticalSource(f"leg_{angle}", position, 18 * out, centred[:, column])


SEEDS = 2**63


@dataclass(frozen=True)
class Simulated:
    """A recording and its truth."""

    signal_TC: Samples
    """Microvolts against the montage's reference."""
    channels: tuple[str, ...]
    """Canonical names of the columns; ``montage.labels`` are their names in a file."""
    sfreq: int
    events: tuple[Event, ...]
    targets_TK: NDArray[np.float64] | None
    """Joint angles in degrees in the order of ``waves.ANGLES``, for the task gait only."""
    sources: tuple[CorticalSource, ...]
    """The sources with a name; background, electrode noise and mains have none."""
    subject: Subject
    montage: Montage


def simulate_recording(
    seed: int,
    subject: int,
    montage: str | Montage = "10-20",
    sfreq: int | None = None,
    seconds: float = 60.0,
    task: SimulatedTask = "eyes",
    mains: float = 50.0,
) -> Simulated:
    """Simulate one recording; the same arguments give the same samples, whatever else is simulated.

    Parameters
    ----------
    subject : number of the person; the same number is the same person in every recording of a seed.
    montage : a name of ``head.MONTAGES``, or any Montage.
    sfreq : samples per second, a whole number from 64 to 4,096; None for the montage's own.
    task : what the person does: "eyes", "hands", "seizure" or "gait".
    mains : frequency of the mains in Hz; 0 for none.
    """
    chosen = montage_of(montage) if isinstance(montage, str) else montage
    rate = chosen.sfreq if sfreq is None else sfreq
    check_recording(seed, subject, rate, seconds, task, mains)
    clock, person = SampleTimes(int(rate), seconds), make_subject(seed, subject)
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
    """Refuse arguments that cannot be simulated."""
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
