"""Montages: which electrodes are recorded, against what, at which rate, and how a file would label them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.channels.electrodes import POSITIONS, TEN_TWENTY
from cerebro_eeg.channels.names import ALIASES
from cerebro_eeg.errors import ChannelError, ConfigError
from cerebro_eeg.schema import did_you_mean

_OLD = {new: old for old, new in ALIASES.items()}


@dataclass(frozen=True)
class Montage:
    """Channels by canonical name, single electrodes (``Fp1``) against one reference or pairs (``Fp1-F7``)."""

    channels: tuple[str, ...]
    reference: str
    """``average``, ``linked ears``, ``pairs``, or the name of the electrode that all are recorded against."""
    sfreq: int
    """The rate in Hz of machines that record it."""
    label: str = "{}"
    """How files label a channel."""
    old_names: bool = False
    """Files say T3 T4 T5 T6."""

    def __post_init__(self) -> None:
        known = {"average", "linked ears", "pairs"}
        needed = [*self.electrodes, *([] if self.reference in known else [self.reference])]
        unknown = [name for name in needed if name not in POSITIONS]
        if unknown:
            raise ChannelError(f"a montage names {unknown[0]!r}, which is no electrode in its canonical spelling")
        if len(set(self.channels)) != len(self.channels) or not self.channels:
            raise ChannelError("a montage has no channel, or one of them twice; expected each once")
        if self.reference in self.channels or (self.reference == "average" and len(self.channels) < 2):
            raise ChannelError(f"against the reference {self.reference!r} a channel of the montage is silence")

    @property
    def electrodes(self) -> tuple[str, ...]:
        """Every electrode that a channel touches, once; without the reference."""
        single = (name for channel in self.channels for name in channel.split("-"))
        return tuple(dict.fromkeys(single))

    @property
    def labels(self) -> tuple[str, ...]:
        names = [_OLD.get(name, name) if self.old_names else name for name in self.channels]
        return tuple(self.label.format(name) for name in names)

    def weights(self) -> tuple[tuple[str, ...], NDArray[np.float64]]:
        """Electrodes, and the matrix (electrode, channel) that makes channels of their potentials."""
        extra = {"linked ears": ("A1", "A2"), "average": (), "pairs": ()}.get(self.reference, (self.reference,))
        names = tuple(dict.fromkeys((*self.electrodes, *extra)))
        matrix = np.zeros((len(names), len(self.channels)))
        for column, channel in enumerate(self.channels):
            anode, _, cathode = channel.partition("-")
            matrix[names.index(anode), column] += 1
            if cathode:
                matrix[names.index(cathode), column] -= 1
        against = self.electrodes if self.reference == "average" else extra
        for name in against:
            matrix[names.index(name)] -= 1 / len(against)
        return names, matrix


MONTAGES: Mapping[str, Montage] = {
    "10-20": Montage(TEN_TWENTY, "linked ears", 250, "EEG {}-LE", old_names=True),
    "32": Montage(
        tuple(
            "Fp1 Fp2 F7 F3 Fz F4 F8 FC5 FC1 FCz FC2 FC6 T7 C3 C4 T8 TP9 CP5 CP1 CP2 CP6 TP10 P7 P3 Pz P4 P8 PO9 O1 Oz "
            "O2 PO10".split()
        ),
        "Cz",
        500,
        "EEG {}-REF",
    ),
    "64": Montage(
        tuple(
            "Fp1 AF7 AF3 F1 F3 F5 F7 FT7 FC5 FC3 FC1 C1 C3 C5 T7 TP7 CP5 CP3 CP1 P1 P3 P5 P7 P9 PO7 PO3 O1 Iz Oz "
            "POz Pz CPz Fpz Fp2 AF8 AF4 AFz Fz F2 F4 F6 F8 FT8 FC6 FC4 FC2 FCz Cz C2 C4 C6 T8 TP8 CP6 CP4 CP2 P2 "
            "P4 P6 P8 P10 PO8 PO4 O2".split()
        ),
        "average",
        512,
        "{}-AVG",
    ),
    "muse": Montage(("TP9", "AF7", "AF8", "TP10"), "Fpz", 256),
    "epoc": Montage(tuple("AF3 F7 F3 FC5 T7 P7 O1 O2 P8 T8 FC6 F4 F8 AF4".split()), "P3", 128),
    "bipolar": Montage(
        tuple(
            "Fp1-F7 F7-T7 T7-P7 P7-O1 Fp1-F3 F3-C3 C3-P3 P3-O1 Fz-Cz Cz-Pz Fp2-F4 F4-C4 C4-P4 P4-O2 Fp2-F8 F8-T8 T8-P8 "
            "P8-O2".split()
        ),
        "pairs",
        200,
    ),
}


def montage_of(name: str) -> Montage:
    """A montage by its name."""
    if name not in MONTAGES:
        raise ConfigError(
            f"there is no montage {name!r}{did_you_mean(name, MONTAGES)}; the montages are {', '.join(MONTAGES)}"
        )
    return MONTAGES[name]
