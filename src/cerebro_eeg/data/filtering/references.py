"""Re-referencing as plain functions of samples and channels: average, linked ears, and two bipolar montages.

All references are differences of channels at one moment, so they may come before or after a filter.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from cerebro_eeg.channels.names import Channel
from cerebro_eeg.data.reading.recording import Samples
from cerebro_eeg.errors import ChannelError, ConfigError, offered

Reference = Literal["as_recorded", "average", "linked_ears", "tcp", "double_banana"]

MONTAGES: dict[str, tuple[Channel, ...]] = {
    name: tuple(Channel(*pair.split("-")) for pair in pairs.split())
    for name, pairs in {
        # The temporal central parasagittal montage of the Temple corpora, in their order.
        "tcp": "Fp1-F7 F7-T7 T7-P7 P7-O1 Fp2-F8 F8-T8 T8-P8 P8-O2 A1-T7 T7-C3 C3-Cz Cz-C4 C4-T8 T8-A2 "
        "Fp1-F3 F3-C3 C3-P3 P3-O1 Fp2-F4 F4-C4 C4-P4 P4-O2",
        # The longitudinal montage: two chains from front to back on each side, and the middle.
        "double_banana": "Fp2-F4 F4-C4 C4-P4 P4-O2 Fp1-F3 F3-C3 C3-P3 P3-O1 Fp2-F8 F8-T8 T8-P8 P8-O2 "
        "Fp1-F7 F7-T7 T7-P7 P7-O1 Fz-Cz Cz-Pz",
    }.items()
}


def rereference(samples: Samples, channels: Sequence[Channel], kind: Reference) -> tuple[Samples, tuple[Channel, ...]]:
    """Return samples (time, channel) against another reference, and their channels.

    ``average`` subtracts the mean of all channels. ``linked_ears`` subtracts the mean of A1 and A2, which stay in.
    ``tcp`` and ``double_banana`` return the pairs of that montage that the channels allow. Channels that are pairs
    already fit only these two, unchanged.
    """
    columns = {channel: column for column, channel in enumerate(channels)}
    if samples.ndim != 2 or samples.shape[1] != len(channels) or len(columns) != len(channels):
        raise ChannelError(
            f"samples of shape {samples.shape} and {len(columns)} different channels; expected (time, channel) with "
            "each channel once"
        )
    if kind == "as_recorded":
        return samples, tuple(channels)
    if kind in MONTAGES:
        return _pairs(samples, columns, kind)
    pairs = [channel.name for channel in channels if channel.cathode is not None]
    if pairs:
        raise ChannelError(
            f"{len(pairs)} of {len(channels)} channels are pairs ({pairs[0]}); the reference {kind!r} needs single "
            "electrodes"
            + (
                "; use reference='as_recorded', reference='tcp' or reference='double_banana'"
                if offered("reference")
                else ""
            )
        )
    if kind == "average":
        if len(channels) < 2:
            raise ChannelError("an average reference of 1 channel is silence; expected 2 or more channels")
        return samples - samples.mean(axis=1, keepdims=True, dtype=np.float32), tuple(channels)
    if kind == "linked_ears":
        missing = [name for name in ("A1", "A2") if Channel(name) not in columns]
        if missing:
            raise ChannelError(
                f"the reference 'linked_ears' needs the channels A1 and A2; missing: {', '.join(missing)}"
                + ("; use another reference" if offered("reference") else "")
            )
        ears = samples[:, [columns[Channel("A1")], columns[Channel("A2")]]].mean(
            axis=1, keepdims=True, dtype=np.float32
        )
        return samples - ears, tuple(channels)
    raise ConfigError(f"reference is {kind!r}; expected {', '.join(map(repr, get_args(Reference)))}")


def _pairs(samples: Samples, columns: dict[Channel, int], kind: str) -> tuple[Samples, tuple[Channel, ...]]:
    made, kept = [], []
    for pair in MONTAGES[kind]:
        sides = [columns.get(Channel(name)) for name in (pair.anode, pair.cathode) if name is not None]
        if pair in columns:
            made.append(samples[:, columns[pair]])
        elif None not in sides:
            made.append(samples[:, sides[0]] - samples[:, sides[1]])
        else:
            continue
        kept.append(pair)
    if not kept:
        raise ChannelError(
            f"none of the {len(MONTAGES[kind])} pairs of {kind!r} can be made of these {len(columns)} channels; "
            "expected electrodes such as Fp1, F7, T7, P7, O1"
            + ("; use reference='as_recorded'" if offered("reference") else "")
        )
    return np.stack(made, axis=1), tuple(kept)
