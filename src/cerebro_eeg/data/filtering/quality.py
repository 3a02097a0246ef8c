"""Quality: which channels of a recording are flat, clipped, disconnected or absurdly scaled, and what to do about them.

``quality_meter.py`` counts, on the samples as they were recorded, before any filter. A count is no verdict:
``Thresholds`` turns counts into faults, and a policy (keep, drop, refuse) says what follows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cerebro_eeg.channels.names import Channel
from cerebro_eeg.errors import ConfigError, RecordingError

FAULTS = ("flat", "clipped", "disconnected", "scaled", "missing")
Policy = Literal["keep", "drop", "refuse"]


@dataclass(frozen=True)
class Thresholds:
    """Where a count becomes a fault. Microvolts are taken after the mean of the second is taken off."""

    flat_uv: float = 0.1
    """A second whose samples span no more than this is flat."""
    clip_run: int = 5
    """So many samples in a row at the channel's highest or lowest value are clipped; fewer are a wave's crest."""
    mains_share: float = 0.99
    """A second with more of its power than this at 50 or 60 Hz hears the mains and not a head."""
    quiet_uv: float = 0.3
    """A second with a lower rms comes from no head."""
    loud_uv: float = 2_000.0
    """A second with a higher rms comes from no head."""
    share: float = 0.5
    """A channel with a larger share of flat seconds is flat; of mains, quiet or loud ones, disconnected."""
    clip_share: float = 0.01
    """A channel with a larger share of clipped samples is clipped."""
    missing_share: float = 0.01
    """A channel with a larger share of NaN or infinite samples is missing."""
    scale_uv: tuple[float, float] = (0.01, 20_000.0)
    """A channel whose median rms lies outside is in another unit than its header says."""


@dataclass(frozen=True)
class ChannelQuality:
    """What was counted in one channel."""

    samples: int
    missing: int
    """Samples that are NaN or infinite."""
    clipped: int
    """Samples in long runs at the highest or the lowest value."""
    seconds: int
    """Whole seconds without a missing sample; the counts below are of these."""
    flat: int
    mains: int
    quiet: int
    """Not flat, yet too small."""
    loud: int
    rms: float
    """Median over the seconds that are not constant, to 6 %; 0 where all are."""


def faults(channel: ChannelQuality, thresholds: Thresholds) -> tuple[str, ...]:
    """The faults of a channel, by the names in ``FAULTS``; in the wrong unit it is neither flat nor disconnected."""
    found = []
    low, high = thresholds.scale_uv
    scaled = channel.rms > 0 and not low <= channel.rms <= high
    limit = thresholds.share * channel.seconds
    if channel.flat > limit and not scaled:
        found.append("flat")
    if channel.clipped > thresholds.clip_share * channel.samples:
        found.append("clipped")
    if max(channel.mains, channel.quiet, channel.loud) > limit and not scaled:
        found.append("disconnected")
    if scaled:
        found.append("scaled")
    if channel.missing > thresholds.missing_share * channel.samples:
        found.append("missing")
    return tuple(found)


def count(channels: Sequence[ChannelQuality], thresholds: Thresholds) -> dict[str, int]:
    """Channels with each fault, for the store."""
    found = [faults(channel, thresholds) for channel in channels]
    return {name: sum(name in one for one in found) for name in FAULTS}


def choose(
    channels: Sequence[Channel], quality: Sequence[ChannelQuality], thresholds: Thresholds, policy: Policy
) -> tuple[int, ...]:
    """Columns to use: all (keep), those without a fault (drop), or an error when one has a fault (refuse)."""
    if policy not in ("keep", "drop", "refuse"):
        raise ConfigError(f"the policy for bad channels is {policy!r}; expected 'keep', 'drop' or 'refuse'")
    found = [faults(one, thresholds) for one in quality]
    good = tuple(column for column, bad in enumerate(found) if not bad)
    if policy == "keep" or len(good) == len(channels):
        return tuple(range(len(channels)))
    named = [f"{channel.name} ({', '.join(bad)})" for channel, bad in zip(channels, found, strict=True) if bad]
    if policy == "refuse" or not good:
        wanted = "none" if policy == "refuse" else "at least one good channel"
        raise RecordingError(
            "quality",
            f"{len(named)} of {len(channels)} channels are bad: {', '.join(named)}; expected {wanted}; use the policy "
            f"{'drop or keep' if policy == 'refuse' else 'keep'}",
        )
    return good
