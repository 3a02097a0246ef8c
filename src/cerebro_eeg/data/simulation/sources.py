"""The sources that have a name: alpha, mu, beta, theta, blinks, muscles, seizures, and what moves with the legs.

A source is a current dipole at a place with a direction and a time course. Moments are chosen so that a subject with a
middling skull shows what textbooks show on the scalp: 30 microvolts of alpha, blinks of 100, spike and wave of 300.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.reading.recording import Event
from cerebro_eeg.data.simulation import waves
from cerebro_eeg.data.simulation.head import electrode_positions
from cerebro_eeg.data.simulation.schedule import Task
from cerebro_eeg.data.simulation.subject import Subject, generator
from cerebro_eeg.data.simulation.waves import Clock

Floats = NDArray[np.float64]
Draws = Callable[..., np.random.Generator]
CORTEX = 0.62  # of the radius: a patch of some square centimetres at the surface acts like a dipole below it
LEAD = 0.1  # seconds that the brain is ahead of the legs


@dataclass(frozen=True)
class Source:
    """A dipole: ``moment`` in nA m (x, y, z) times ``course`` (time) is its strength."""

    name: str
    position: Floats
    """In radii of the head."""
    moment: Floats
    course: Floats
    in_brain: bool = True
    """Below the skull; eyes and muscles are not."""


def named_sources(seed: int, subject: Subject, task: Task, events: tuple[Event, ...], clock: Clock) -> Iterator[Source]:
    """All sources with a name, of one recording."""

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
        yield Source(f"eye_{side}", eye, 320 * up, lids_T, in_brain=False)
    yield from _muscles(subject, rng, clock, waves.gate(during("muscle"), clock, 0.3))
    for event in during("seizure"):
        yield from _seizure(subject, event, clock)
    if task == "gait":
        yield from _legs(subject, rng, clock)


def targets(seed: int, subject: Subject, task: Task, clock: Clock) -> Floats | None:
    """Joint angles (time, angle) in degrees, where the task has them."""
    if task != "gait":
        return None
    return waves.angles(generator(seed, subject.number, task, "legs"), clock, subject.stride_hz)


def _at(electrode: str, depth: float = CORTEX) -> tuple[Floats, Floats]:
    """The place below an electrode, and the direction to it."""
    out = electrode_positions([electrode])[0]
    return out * depth, out


def _alpha(subject: Subject, rng: Draws, clock: Clock, gate_T: Floats) -> Iterator[Source]:
    """Two hemispheres that mostly agree; from the occipital pole it travels to parietal and on to central cortex."""
    both = waves.rhythm(rng("alpha"), clock)
    for side, names in (("left", "O1 PO7 P3 CP1"), ("right", "O2 PO8 P4 CP2")):
        envelope = 0.8 * both + 0.6 * waves.rhythm(rng("alpha", side), clock)
        for name, delay, share in zip(names.split(), (0.0, 0.008, 0.018, 0.03), (1.0, 0.7, 0.55, 0.25), strict=True):
            position, out = _at(name)
            course = gate_T * waves.oscillation(envelope, clock, subject.alpha_hz, delay, 0.12)
            yield Source(f"alpha_{name}", position, 45 * subject.alpha * share * out, course)


def _sensorimotor(subject: Subject, side: str, rng: Draws, clock: Clock, gate_T: Floats) -> Iterator[Source]:
    """Mu and beta of the hand area, which fall while the other side's hand moves; each hemisphere on its own."""
    hand, behind = ("C3", "CP3") if side == "left" else ("C4", "CP4")
    mu, beta = waves.rhythm(rng("mu", side), clock), waves.rhythm(rng("beta", side), clock, 1.2)
    for name, delay, share in ((hand, 0.0, 1.0), (behind, 0.012, 0.5)):
        position, out = _at(name)
        course = gate_T * waves.oscillation(mu, clock, subject.mu_hz, delay, 0.35)
        yield Source(f"mu_{name}", position, 32 * subject.mu * share * out, course)
    position, out = _at("FC3" if side == "left" else "FC4")
    course = gate_T * waves.oscillation(beta, clock, 2 * subject.mu_hz + 1.5, 0.0, 0.0)
    yield Source(f"beta_{side}", position, 14 * subject.mu * out, course)


def _theta(rng: Draws, clock: Clock, gate_T: Floats) -> Iterator[Source]:
    """Frontal midline, travelling backward."""
    envelope = waves.rhythm(rng("theta"), clock, 0.5)
    for name, delay, share in (("AFz", 0.0, 0.8), ("Fz", 0.02, 1.0), ("FCz", 0.04, 0.7)):
        position, out = _at(name)
        yield Source(
            f"theta_{name}", position, 18 * share * out, gate_T * waves.oscillation(envelope, clock, 6.1, delay, 0.0)
        )


def _muscles(subject: Subject, rng: Draws, clock: Clock, gate_T: Floats) -> Iterator[Source]:
    """The temporal muscles: a little all the time, bursts now and then, above 20 Hz."""
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
            yield Source(f"muscle_{name}", position, 2.5 * subject.muscle * out, course, in_brain=False)


def _seizure(subject: Subject, event: Event, clock: Clock) -> Iterator[Source]:
    """Both hemispheres at once, strongest in front; it reaches the back a little later."""
    spread = {"Fz": 1.0, "F3 F4 Cz": 0.8, "C3 C4 Fp1 Fp2": 0.5, "P3 P4 F7 F8": 0.35, "O1 O2": 0.25}
    for step, (names, share) in enumerate(spread.items()):
        for name in names.split():
            position, out = _at(name, 0.5)
            course = waves.spikes_and_waves(event, clock, subject.seizure_hz, 0.005 * step)
            yield Source(f"seizure_{name}", position, 480 * share * out, course)


def _legs(subject: Subject, rng: Draws, clock: Clock) -> Iterator[Source]:
    """Slow potentials of the leg areas, each with an angle of the other side's leg, ahead of it by ``LEAD``."""
    ahead = waves.angles(rng("legs"), clock, subject.stride_hz, LEAD)
    centred = (ahead - ahead.mean(axis=0)) / ahead.std(axis=0)
    for column, (angle, name) in enumerate(zip(waves.ANGLES, "C2 CP2 FC2 C1 CP1 FC1".split(), strict=True)):
        position, out = _at(name)
        yield Source(f"leg_{angle}", position, 18 * out, centred[:, column])
