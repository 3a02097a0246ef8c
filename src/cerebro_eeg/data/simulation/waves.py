"""Time courses of sources, and the background of cortex, electrodes and mains.

A course is a function of time that does not know the sampling rate: rhythms that wax and wane, noise of a band, gates,
blinks, spikes and waves, joint angles. Noise is drawn by frequency, from low to high, so a recording at 500 Hz is the
one at 250 Hz with the higher frequencies added.

The background of the cortex is made of wave fronts. Each front is a noise whose power falls with frequency, and a
rhythm of its own, and runs along a few places of the cortex with the delay of the way. So neighbours share it, and
later places show it later. There are many fronts: no instant tells all, and the past of a channel tells some of its
future. The background is stationary and is added up by frequency, before one transform to time.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.channels.electrodes import HEAD_MM
from cerebro_eeg.data.reading.recording import Event
from cerebro_eeg.data.simulation.head import Floats, Head, Subject, electrode_positions, generator, lead_field

Complex = NDArray[np.complex64]
ANGLES = ("hip_left", "knee_left", "ankle_left", "hip_right", "knee_right", "ankle_right")


@dataclass(frozen=True)
class SampleTimes:
    """The times of the samples. Noise repeats after ``period`` seconds, which is later than the end."""

    sfreq: int
    seconds: float

    @property
    def samples(self) -> int:
        return round(self.seconds * self.sfreq)

    @property
    def period(self) -> int:
        return math.ceil(self.seconds) + 2

    @property
    def times(self) -> Floats:
        return np.arange(self.samples) / self.sfreq

    @property
    def frequencies(self) -> Floats:
        """Frequencies of the noise, below half the rate."""
        return np.arange((self.period * self.sfreq + 1) // 2) / self.period


def white(rng: np.random.Generator, clock: SampleTimes, count: int) -> Complex:
    """Return spectra (frequency, count) of noise whose power is 1 per Hz; ``to_time`` makes courses of them."""
    draws = rng.standard_normal((len(clock.frequencies), count, 2), np.float32)
    draws *= np.float32(math.sqrt(1 / (2 * clock.period)))
    return draws.view(np.complex64)[..., 0]


def to_time(spectra_FC: Complex, clock: SampleTimes) -> NDArray[np.float32]:
    """Return courses (time, count) with these spectra."""
    from scipy import fft

    size = clock.period * clock.sfreq
    full_CF = np.zeros((spectra_FC.shape[1], size // 2 + 1), np.complex64)
    full_CF[:, : len(spectra_FC)] = spectra_FC.T
    return (fft.irfft(full_CF, size, axis=1)[:, : clock.samples] * np.float32(size / math.sqrt(2))).T


def rhythm(rng: np.random.Generator, clock: SampleTimes, bandwidth: float = 0.4) -> NDArray[np.complex128]:
    """Return the slow amplitude and phase of a rhythm as a complex number per time; the mean of its square is 1.

    ``bandwidth`` is a standard deviation in Hz, so the phase holds for about ``1 / (2 pi bandwidth)`` seconds.
    """
    most = math.ceil(4 * bandwidth * clock.period)
    offsets = np.arange(-most, most + 1)
    draws = rng.standard_normal((len(offsets), 2)) @ np.array([1, 1j])
    weights = np.exp(-((offsets / clock.period / bandwidth) ** 2) / 4)
    coefficients = draws * weights / math.sqrt(2 * float((weights**2).sum()))
    size = clock.period * clock.sfreq
    spectrum = np.zeros(size, np.complex128)
    spectrum[offsets] = coefficients
    return (np.fft.ifft(spectrum) * size)[: clock.samples]


def oscillation(
    envelope_T: NDArray[np.complex128], clock: SampleTimes, hertz: float, delay: float, arch: float
) -> Floats:
    """Return a rhythm's course at a place that it reaches ``delay`` seconds later; ``arch`` is the overtone's share.

    The overtone keeps its phase to the fundamental, which makes pointed waves, like those of mu.
    """
    wave_T = envelope_T * np.exp(2j * math.pi * hertz * (clock.times - delay))
    size_T = np.maximum(np.abs(envelope_T), 1e-12)
    return wave_T.real + arch * (wave_T**2 / size_T).real


def gate(events: Iterable[Event], clock: SampleTimes, ramp: float = 0.4) -> Floats:
    """Return 1 during the events and 0 otherwise, with a transition of ``ramp`` seconds around their edges."""
    times_T, open_T = clock.times, np.zeros(clock.samples)
    for event in events:
        rise = np.clip((times_T - event.onset) / ramp + 0.5, 0, 1)
        fall = np.clip((event.onset + event.duration - times_T) / ramp + 0.5, 0, 1)
        open_T = np.maximum(open_T, np.minimum(rise, fall))
    return open_T * open_T * (3 - 2 * open_T)


def blinks(events: Iterable[Event], rng: np.random.Generator, clock: SampleTimes) -> Floats:
    """Return lids that close fast and open slowly; the mean peak is 1, 0.1 s after the onset."""
    course_T = np.zeros(clock.samples)
    for event in events:
        first = math.ceil(event.onset * clock.sfreq)
        shape = np.arange(first, min(clock.samples, first + clock.sfreq)) / clock.sfreq - event.onset
        shape = (shape / 0.1) ** 2 * np.exp(2 - shape / 0.05)
        course_T[first : first + len(shape)] += shape * rng.uniform(0.75, 1.25)
    return course_T


def spikes_and_waves(event: Event, clock: SampleTimes, hertz: float, delay: float) -> Floats:
    """Return negative spikes and negative waves in turn, slowing by a tenth; about 1 from top to bottom."""
    since_T = np.clip(clock.times - delay - event.onset, 0, event.duration)
    cycle_T = hertz * (1.05 * since_T - 0.05 * since_T**2 / max(event.duration, 1e-9)) % 1
    spike = np.exp(-(((cycle_T - 0.12) / 0.04) ** 2))
    trough = np.exp(-(((cycle_T - 0.23) / 0.05) ** 2))
    wave = np.exp(-(((cycle_T - 0.58) / 0.21) ** 2))
    return (0.41 - spike + 0.3 * trough - wave) * gate([event], clock, 0.2)


def angles(rng: np.random.Generator, clock: SampleTimes, stride_hz: float, lead: float = 0.0) -> Floats:
    """Return degrees (time, angle) while walking, ``lead`` seconds ahead, in the order of ``ANGLES``.

    The templates have two harmonics. Pace and reach change slowly, and the right leg walks half a stride behind the
    left.
    """
    start, slow = rng.uniform(0, 1), rng.uniform(0, 2 * math.pi, 4)
    times_T = clock.times + lead
    drift_T = 0.35 * np.sin(2 * math.pi * 0.031 * times_T + slow[0]) + 0.2 * np.sin(
        2 * math.pi * 0.073 * times_T + slow[1]
    )
    reach_T = (
        1 + 0.2 * np.sin(2 * math.pi * 0.043 * times_T + slow[2]) + 0.1 * np.sin(2 * math.pi * 0.11 * times_T + slow[3])
    )
    columns = []
    for behind in (0.0, 0.5):
        phase_T = 2 * math.pi * (stride_hz * times_T + drift_T + start - behind)
        hip = 12 + 20 * reach_T * np.cos(phase_T)
        knee = 24 + reach_T * (-14 * np.cos(phase_T - 0.9) - 13 * np.cos(2 * phase_T - 0.4))
        ankle = reach_T * (5 * np.cos(phase_T + 1.2) + 8 * np.cos(2 * phase_T + 2.4))
        columns += [hip, knee, ankle]
    return np.stack(columns, axis=1)


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
    seed: int, subject: Subject, task: str, model: Head, electrodes: Sequence[str], clock: SampleTimes
) -> NDArray[np.float32]:
    """Return microvolts (time, electrode) of background and electrode noise, against infinity."""
    positions_KD3, moments_KD3 = _fronts(seed, subject)
    field_SE3 = lead_field(model, positions_KD3.reshape(-1, 3), electrode_positions(electrodes))
    field_KDE3 = field_SE3.reshape(STEPS, FRONTS, len(electrodes), 3)
    gain_KDE = np.einsum("kdec,kdc->kde", field_KDE3, moments_KD3).astype(np.complex64)
    rhythms_D = generator(seed, subject.number, "local rhythms").uniform(*LOCAL_HZ, FRONTS)
    frequency_F = clock.frequencies
    power_FD = (1 - LOCAL) * _falling(frequency_F, subject.slope)[:, None] + LOCAL * _peaks(frequency_F, rhythms_D)
    spectra_FD = white(generator(seed, subject.number, task, "background"), clock, FRONTS)
    spectra_FD *= np.sqrt(power_FD)
    total_FE = spectra_FD @ gain_KDE[0]
    for step in range(1, STEPS):
        delay_F = np.exp(-2j * math.pi * frequency_F * step * STEP_MM / SPEED_MM).astype(np.complex64)
        total_FE += delay_F[:, None] * (spectra_FD @ gain_KDE[step])
    drift_F = (frequency_F >= 0.1) * 3.0 / (1 + (frequency_F / 0.3) ** 2)
    shape_F = np.hypot(drift_F, subject.noise_uv / math.sqrt(128)).astype(np.float32)
    for column, name in enumerate(electrodes):
        own_F = white(generator(seed, subject.number, task, "electrode", name), clock, 1)[:, 0]
        total_FE[:, column] += own_F * shape_F
    return to_time(total_FE, clock)


def mains(
    seed: int, subject: Subject, task: str, hertz: float, electrodes: Sequence[str], clock: SampleTimes
) -> NDArray[np.float32]:
    """Return microvolts (time, electrode) of the mains, nearly the same everywhere, with a small part per electrode."""
    waves_TE = np.zeros((clock.samples, len(electrodes)), np.float32)
    if hertz >= clock.sfreq / 2:
        return waves_TE
    for column, name in enumerate(electrodes):
        rng = generator(seed, subject.number, task, "mains", name)
        size, phase = subject.mains_uv * rng.lognormal(0, 0.6), rng.normal(0, 0.8)
        waves_TE[:, column] = size * np.sin(2 * math.pi * hertz * clock.times + phase)
    return waves_TE


def _fronts(seed: int, subject: Subject) -> tuple[Floats, Floats]:
    """Return places and moments (step, front, 3) along the way of each front, fixed for a subject."""
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
    """Return directions spread evenly over the cortex, which ends a little below the ears (golden spiral)."""
    height = 1 - (np.arange(count) + 0.5) / count * 1.3
    turn = math.pi * (3 - math.sqrt(5)) * np.arange(count)
    width = np.sqrt(1 - height**2)
    return np.stack([width * np.cos(turn), width * np.sin(turn), height], axis=1)


def _falling(frequency_F: Floats, slope: float) -> NDArray[np.float32]:
    """Return power by frequency, falling with this power of it above the knee; from 1 to 40 Hz it sums to 1."""
    power_F = (frequency_F >= 0.1) / (frequency_F**2 + KNEE_HZ**2) ** (slope / 2)
    grid = np.linspace(1, 40, 400)
    total = np.trapezoid(1 / (grid**2 + KNEE_HZ**2) ** (slope / 2), grid)
    return (power_F / total).astype(np.float32)


def _peaks(frequency_F: Floats, hertz_D: Floats) -> NDArray[np.float32]:
    """Return power by frequency (frequency, front) around each front's own rhythm; sums to 1."""
    off_FD = (frequency_F[:, None] - hertz_D) / LOCAL_WIDTH_HZ
    return (np.exp(-(off_FD**2) / 2) / (LOCAL_WIDTH_HZ * math.sqrt(2 * math.pi))).astype(np.float32)
