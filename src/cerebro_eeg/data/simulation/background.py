"""What has no name: activity of the whole cortex, the noise of electrodes and the mains.

The background is made of wave fronts: each a noise whose power falls with frequency, and a rhythm of its own,
which runs along a few places of the cortex with the delay of the way. So neighbours share it, those on the way later,
and there are many fronts: no instant tells all, and the past of a channel tells some of its future. All of it is
stationary and is added up by frequency, before one transform to time.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.channels.electrodes import HEAD_MM
from cerebro_eeg.data.simulation import waves
from cerebro_eeg.data.simulation.head import Head, electrode_positions, lead_field
from cerebro_eeg.data.simulation.subject import Subject, generator
from cerebro_eeg.data.simulation.waves import Clock

Floats = NDArray[np.float64]
FRONTS = 48
STEPS = 4  # places along the way of a front
STEP_MM = 22.0
SPEED_MM = 1500.0  # a second: slow waves travel at 1 to 10 m/s over the cortex
KNEE_HZ = 1.0  # below it the spectrum is flat
MOMENT = 5.0  # nA m, root mean square from 1 to 40 Hz
LOCAL = 0.6  # of a front's power is its own rhythm
LOCAL_HZ = (5.0, 22.0)
LOCAL_WIDTH_HZ = 0.3


def potentials(
    seed: int, subject: Subject, task: str, model: Head, electrodes: Sequence[str], clock: Clock
) -> NDArray[np.float32]:
    """Microvolts (time, electrode) of background and electrode noise, against infinity."""
    positions_KD3, moments_KD3 = _fronts(seed, subject)
    field_SE3 = lead_field(model, positions_KD3.reshape(-1, 3), electrode_positions(electrodes))
    field_KDE3 = field_SE3.reshape(STEPS, FRONTS, len(electrodes), 3)
    gain_KDE = np.einsum("kdec,kdc->kde", field_KDE3, moments_KD3).astype(np.complex64)
    rhythms_D = generator(seed, subject.number, "local rhythms").uniform(*LOCAL_HZ, FRONTS)
    frequency_F = clock.frequencies
    power_FD = (1 - LOCAL) * _falling(frequency_F, subject.slope)[:, None] + LOCAL * _peaks(frequency_F, rhythms_D)
    spectra_FD = waves.white(generator(seed, subject.number, task, "background"), clock, FRONTS)
    spectra_FD *= np.sqrt(power_FD)
    total_FE = spectra_FD @ gain_KDE[0]
    for step in range(1, STEPS):
        delay_F = np.exp(-2j * math.pi * frequency_F * step * STEP_MM / SPEED_MM).astype(np.complex64)
        total_FE += delay_F[:, None] * (spectra_FD @ gain_KDE[step])
    drift_F = (frequency_F >= 0.1) * 3.0 / (1 + (frequency_F / 0.3) ** 2)
    shape_F = np.hypot(drift_F, subject.noise_uv / math.sqrt(128)).astype(np.float32)
    for column, name in enumerate(electrodes):
        own_F = waves.white(generator(seed, subject.number, task, "electrode", name), clock, 1)[:, 0]
        total_FE[:, column] += own_F * shape_F
    return waves.to_time(total_FE, clock)


def mains(
    seed: int, subject: Subject, task: str, hertz: float, electrodes: Sequence[str], clock: Clock
) -> NDArray[np.float32]:
    """Microvolts (time, electrode) of the mains: much the same everywhere, of each electrode a little its own."""
    waves_TE = np.zeros((clock.samples, len(electrodes)), np.float32)
    if hertz >= clock.sfreq / 2:
        return waves_TE
    for column, name in enumerate(electrodes):
        rng = generator(seed, subject.number, task, "mains", name)
        size, phase = subject.mains_uv * rng.lognormal(0, 0.6), rng.normal(0, 0.8)
        waves_TE[:, column] = size * np.sin(2 * math.pi * hertz * clock.times + phase)
    return waves_TE


def _fronts(seed: int, subject: Subject) -> tuple[Floats, Floats]:
    """Places and moments (step, front, 3) along the way of each front; a subject's own, the same in every recording."""
    rng = generator(seed, subject.number, "cortex")
    start_D3 = _spread(FRONTS)
    axis_D3 = np.cross(start_D3, rng.standard_normal((FRONTS, 3)))
    axis_D3 /= np.linalg.norm(axis_D3, axis=1, keepdims=True)
    depth_D1 = rng.uniform(0.68, 0.84, (FRONTS, 1))
    tilt_D3 = 0.5 * rng.standard_normal((FRONTS, 3))
    sign_D1 = rng.choice((-1.0, 1.0), (FRONTS, 1))
    angle_KD1 = np.arange(STEPS)[:, None, None] * STEP_MM / (HEAD_MM * depth_D1)
    out_KD3 = start_D3 * np.cos(angle_KD1) + np.cross(axis_D3, start_D3) * np.sin(angle_KD1)
    moment_KD3 = out_KD3 + tilt_D3
    moment_KD3 /= np.linalg.norm(moment_KD3, axis=2, keepdims=True)
    return depth_D1 * out_KD3, subject.background * MOMENT * sign_D1 * moment_KD3


def _spread(count: int) -> Floats:
    """Directions spread evenly over the cortex, which ends a little below the level of the ears (golden spiral)."""
    height = 1 - (np.arange(count) + 0.5) / count * 1.3
    turn = math.pi * (3 - math.sqrt(5)) * np.arange(count)
    width = np.sqrt(1 - height**2)
    return np.stack([width * np.cos(turn), width * np.sin(turn), height], axis=1)


def _falling(frequency_F: Floats, slope: float) -> NDArray[np.float32]:
    """Power by frequency, falling with this power of it above the knee; from 1 to 40 Hz it sums to 1."""
    power_F = (frequency_F >= 0.1) / (frequency_F**2 + KNEE_HZ**2) ** (slope / 2)
    grid = np.linspace(1, 40, 400)
    total = np.trapezoid(1 / (grid**2 + KNEE_HZ**2) ** (slope / 2), grid)
    return (power_F / total).astype(np.float32)


def _peaks(frequency_F: Floats, hertz_D: Floats) -> NDArray[np.float32]:
    """Power by frequency (frequency, front) around each front's own rhythm; sums to 1."""
    off_FD = (frequency_F[:, None] - hertz_D) / LOCAL_WIDTH_HZ
    return (np.exp(-(off_FD**2) / 2) / (LOCAL_WIDTH_HZ * math.sqrt(2 * math.pi))).astype(np.float32)
