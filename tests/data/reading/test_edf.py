"""EDF and BDF files with known answers: samples within one quantum and times exact, or an explicit refusal."""

import gzip
import os
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_eeg.channels.match import VOCABULARY
from cerebro_eeg.data.reading.edf import late_faults, open_edf
from cerebro_eeg.data.reading.recording import ChannelPolicy, Event, Recording, Segment
from cerebro_eeg.errors import ChannelError, ConfigError, InputError, RecordingError
from edf_files import File, Notes, Wave, microvolts, ramp, tal, timekeeping

STRICT = ChannelPolicy()
DROP = ChannelPolicy(unknown="drop")


@dataclass
class Right:
    """A file that is read, and what must come out of it."""

    file: File | bytes
    names: Sequence[str] = ("Fp1", "Fp2")
    sfreq: Fraction = Fraction(4)
    segments: Sequence[tuple[int, int, Fraction | float]] = ((0, 12, 0),)
    events: Sequence[tuple[float, float, str]] = ()
    faults: Sequence[str] = ()
    late: Sequence[str] = ()
    scale: Sequence[float] = (1, 1)
    """Microvolts of the unit of each channel."""
    waves: Sequence[Wave] | None = None
    """Where they are not the first signals of the file."""
    policy: ChannelPolicy = field(default_factory=ChannelPolicy)
    unit: str | None = None


@dataclass
class Refused:
    file: File | bytes
    code: str
    policy: ChannelPolicy = field(default_factory=ChannelPolicy)


def two(n: int = 12, samples: int = 4, **fields: object) -> list[Wave]:
    """Fp1 and Fp2 with ``n`` samples each; the fields go into the first."""
    first = Wave("Fp1", ramp(n, seed=1), samples)
    for name, value in fields.items():
        assert hasattr(first, name)
        setattr(first, name, value)
    return [first, Wave("Fp2", ramp(n, seed=2), samples)]


def three(**fields: object) -> list[Wave]:
    """As two, and a channel that is no EEG and has the fields."""
    other = two(**fields)[0]
    other.label, other.counts = "ECG", ramp(len(other.counts), seed=3)
    return [*two()[:1], other, *two()[1:]]


def plus(onsets: Sequence[str], kind: str = "EDF+C", more: dict[int, bytes] | None = None, **fields: object) -> File:
    count = len(onsets)
    notes = Notes(timekeeping(onsets, more), label=f"{kind[:3]} Annotations")
    return File([*two(4 * count), notes], kind=kind, records=count, **fields)  # type: ignore[arg-type]


def doubled(file: File) -> bytes:
    """As a transfer in text mode leaves it."""
    return bytes(file).replace(b"\n", b"\r\n")


def feeds() -> list[Wave]:
    """Some samples hold line feeds."""
    waves = two()
    waves[0].counts[3:5] = [10, 0x0A00 - 4096]
    return waves


def picked(waves: Sequence[Wave], *labels: str) -> list[Wave]:
    return [next(wave for wave in waves if wave.label == label) for label in labels]


BDF = {"dmin": -8388608, "dmax": 8388607, "pmin": -262144, "pmax": 262143}
BIG = [-8388608, -1, 0, 1, 8388607, -256, 255, 65536, -65536, 4660, -4660, 7]
MIXED = [*two(), Wave("Cz", ramp(6), 2)]
CANARY = "CANARY JANE DOE 1970"

RIGHT = {
    "EDF": Right(File(two())),
    "EDF one channel": Right(File(two()[:1]), ("Fp1",)),
    "EDF one record": Right(File(two(4), records=1), segments=[(0, 4, 0)]),
    "one sample": Right(
        File([Wave("Cz", [5], 1)], records=1), ("Cz",), Fraction(1), [(0, 1, 0)]
    ),
    "EDF with non-EEG between": Right(File(three()), waves=picked(three(), "Fp1", "Fp2")),
    "EDF non-EEG without unit": Right(File(three(unit="")), waves=two()),
    "EDF non-EEG with equal limits": Right(File(three(dmin=5, dmax=5, pmin=0, pmax=0)), waves=two()),
    "EDF non-EEG with no numbers": Right(File(three(dmin="?", pmax="n/a")), waves=two()),
    "EDF non-EEG at another rate": Right(File([*two(), Wave("ECG", ramp(30), 10)])),
    "mixed rates, one picked": Right(File(MIXED), policy=ChannelPolicy(pick=["Fp1", "Fp2"])),
    "mixed rates, one kept": Right(
        File(MIXED), ("Cz",), Fraction(2), [(0, 6, 0)], waves=MIXED[2:], policy=ChannelPolicy(keep=["CZ", "Pz"])
    ),
    "keep what is there": Right(
        File([*two(), Wave("strange", ramp(12))]), ("Fp2",), waves=two()[1:], policy=ChannelPolicy(keep=["fp2", "O1"])
    ),
    "unknown dropped": Right(File([*two(), Wave("strange", ramp(12))]), policy=DROP),
    "duplicates, first kept": Right(
        File([*two(), Wave("EEG Fp1-REF", ramp(12, seed=9))]), policy=ChannelPolicy(duplicates="first")
    ),
    "labels of 16 characters": Right(
        File([Wave("EEG Fp1-Referenz"[:16], ramp(12)), Wave("POL           Cz", ramp(12))]),
        ("Cz",),
        waves=[Wave("", ramp(12))],
        policy=DROP,
    ),
    "label padded with NUL": Right(File(two(label=b"Fp1".ljust(16, b"\0")))),
    "label with control characters": Right(File(two(label=b"EEG\x07Fp1-REF"))),
    "unit uV padded with NUL": Right(File(two(unit=b"uV".ljust(8, b"\0")))),
    "unit micro sign in UTF-8": Right(File(two(unit="µV".encode()))),
    "unit mu in UTF-8": Right(File(two(unit="μV".encode()))),
    "unit micro sign in Latin-1": Right(File(two(unit="µV".encode("latin-1")))),
    "unit UV": Right(File(two(unit="UV"))),
    "unit uv": Right(File(two(unit="uv"))),
    "unit nV": Right(File(two(unit="nV")), scale=(1e-3, 1)),
    "unit nV padded with NUL": Right(File(two(unit=b"nV\0\0")), scale=(1e-3, 1)),
    "unit mV": Right(File(two(unit="mV")), scale=(1e3, 1)),
    "unit V": Right(File(two(unit="V", pmin="-1e-4", pmax="1e-4")), scale=(1e6, 1)),
    "unit blank, said to be mV": Right(File(two(unit="")), scale=(1e3, 1), faults=["unit"], unit="mV"),
    "unit unknown, said to be uV": Right(File(two(unit="Volt?")), faults=["unit"], unit="uV"),
    "unit known, another said": Right(File(two()), unit="V"),
    "polarity inverted": Right(File(two(pmin=100, pmax=-100))),
    "range not symmetric": Right(File(two(pmin=-0.125, pmax=3276.7, dmin=0, dmax=2047, counts=ramp(12, start=0)))),
    "digital maximum one too large": Right(File(two(dmin=-32768, dmax=32768))),
    "decimal commas": Right(File(two(pmin="-187,5", pmax="187,5")), faults=["decimal_comma"]),
    "decimal comma in the duration": Right(
        File(two(), duration="0,5"), sfreq=Fraction(8), faults=["decimal_comma"]
    ),
    "numbers with blanks in front and signs": Right(File(two(pmax=" +1.0e2", dmin=" -2048"))),
    "numbers padded with NUL": Right(
        File(two(pmax=b"100\0\0\0\0\0", stated_samples=b"4\0\0\0\0\0\0\0"), stated_signals=b"2\0\0\0")
    ),
    "whole numbers with a point": Right(File(two(stated_samples="4.0", dmin="-2048.0"), stated_records="3.")),
    "non-integer rate": Right(File(two(), duration="0.99"), sfreq=Fraction(400, 99)),
    "record of a third": Right(File(two(), duration="0.333333"), sfreq=Fraction(4_000_000, 333333)),
    "long records": Right(File(two(), duration=60), sfreq=Fraction(1, 15)),
    "record count -1": Right(File(two(), stated_records=-1), faults=["record_count"]),
    "record count -1, cut": Right(
        bytes(File(two(), stated_records=-1))[:-3], segments=[(0, 8, 0)], faults=["record_count", "truncated"]
    ),
    "cut in mid-record": Right(bytes(File(two()))[:-1], segments=[(0, 8, 0)], faults=["truncated"]),
    "cut between records": Right(bytes(File(two()))[:-16], segments=[(0, 8, 0)], faults=["truncated"]),
    "record count too large": Right(File(two(), stated_records=7), faults=["truncated"]),
    "record count too small, time stamps prove the records": Right(
        plus(["+0", "+1", "+2"], stated_records=2), segments=[(0, 8, 0)], faults=["trailing"]
    ),
    "record count too small, the size fits no other record": Right(
        File(two(20), records=5, stated_records=3), segments=[(0, 12, 0)], faults=["trailing"]
    ),
    "a channel with no samples, and the size fits": Right(
        File([*two(), Wave("Cz", (), 0)]), faults=["no_samples"]
    ),
    "trailing bytes": Right(bytes(File(two())) + b"\0" * 5, faults=["trailing"]),
    "trailing line feed": Right(bytes(File(two())) + b"\r\n", faults=["trailing"]),
    "line feeds without carriage returns, cut": Right(
        bytes(File([Wave("Cz", [10] * 12)]))[:-3], ("Cz",), segments=[(0, 8, 0)], faults=["truncated"],
        waves=[Wave("Cz", [10] * 12)],
    ),
    "as many line feeds as trailing bytes": Right(
        bytes(File([Wave("Cz", [10, 11, 12] * 4)])) + b"\0" * 4, ("Cz",), faults=["trailing"],
        waves=[Wave("Cz", [10, 11, 12] * 4)],
    ),
    "header bytes wrong, the size proves it": Right(File(two(), header_bytes=512), faults=["header_bytes"]),
    "header bytes blank, the size proves it": Right(File(two(), header_bytes=""), faults=["header_bytes"]),
    "header longer than its signals, the size proves it": Right(
        File(two(), header_bytes=1024, gap=b"x" * 256), faults=["header_bytes"]
    ),
    "a channel with no samples first": Right(
        File([Wave("Cz", (), 0), *two()]), waves=two(), faults=["no_samples"]
    ),
    "a channel with no samples between": Right(
        File([two()[0], Wave("Cz", (), 0), two()[1]]), waves=two(), faults=["no_samples"]
    ),
    "a non-EEG channel with no samples": Right(File([Wave("ECG", (), 0), *two()]), waves=two()),
    "512 signals": Right(
        File([*two(), *(Wave(f"X{i}", ramp(12, seed=i)) for i in range(510))]), policy=DROP
    ),
    "512 signals, EEG last": Right(
        File([*(Wave(f"EMG{i}", ramp(12, seed=i)) for i in range(510)), *two()]), waves=two()
    ),
    "Latin-1 header": Right(File(two(transducer="Müller ß"), patient="X F X Müller", recording="Spital Zürich")),
    "UTF-8 header": Right(File(two(prefilter="µ".encode()), patient="X F X 山田".encode())),
    "non-printable bytes in the header": Right(File(two(reserved=b"\xff\x00\x01"), patient=b"\x00\x01\x1b[31m\n")),
    "patient with a=b=c": Right(File(two(), patient="X X X X a=b=c", recording="a=b=c")),
    "dates that are none": Right(File(two(), date="99.99.99", time="25:61:61")),
    "out of the digital range": Right(
        File(two(dmin=-1000, dmax=1000, pmin=-500, pmax=500)), late=["out_of_range"]
    ),
    "EDF+C": Right(plus(["+0", "+1", "+2"])),
    "EDF+C, rates with records of 0.99 s": Right(
        plus(["+0", "+0.99", "+1.98"], duration="0.99"), sfreq=Fraction(400, 99)
    ),
    "EDF+C, annotations first": Right(
        File([Notes(timekeeping(["+0", "+1", "+2"])), *two()], kind="EDF+C"), waves=two()
    ),
    "EDF+C, sub-second start": Right(
        plus(["+0.375", "+1.375", "+2.375"], more={1: tal("+1.5", "x", duration="0.25")}),
        events=[(1.125, 0.25, "x")],
    ),
    "EDF+C with annotations": Right(
        plus(
            ["+0", "+1", "+2"],
            more={0: tal("+0.1", "eyes open"), 1: tal("-2.5", "früh", "zwei"), 2: tal("+9.25", "e", duration="1.5")},
        ),
        events=[(0.1, 0, "eyes open"), (-2.5, 0, "früh"), (-2.5, 0, "zwei"), (9.25, 1.5, "e")],
    ),
    "EDF+C, a text beside the onset": Right(
        File([*two(), Notes([tal("+0", "", "start"), tal("+1"), tal("+2")])], kind="EDF+C"), events=[(0, 0, "start")]
    ),
    "EDF+C, two annotation signals": Right(
        File(
            [*two(), Notes(timekeeping(["+0", "+1", "+2"])), Notes([b"", tal("+7", "b"), b""], samples=5)], kind="EDF+C"
        ),
        events=[(7, 0, "b")],
    ),
    "EDF+C, onset off by less than half a sample": Right(plus(["+0", "+1.1249", "+1.8751"])),
    "EDF+C that has a gap after all": Right(
        plus(["+0", "+1", "+5"]), segments=[(0, 8, 0), (8, 12, 5)], faults=["discontinuous"]
    ),
    "EDF+C that drifts": Right(plus([f"+{1.06 * i:.2f}" for i in range(3)]), faults=[]),
    "EDF+C that drifts by more than half a sample": Right(
        plus(["+0", "+1.1", "+2.2"]), faults=["drift"]
    ),
    "EDF+C, a record without onset": Right(
        File([*two(), Notes([tal("+0"), b"", tal("+2")])], kind="EDF+C"), faults=["onset"]
    ),
    "EDF+C, annotations broken": Right(
        plus(["+0", "+1", "+2"], more={0: b"garbage\x14\x00", 1: b"+1.5\x14no end\x00" + tal("+1.75", "good")}),
        events=[(1.75, 0, "good")],
        faults=["annotation"],
    ),
    "EDF+C, annotation in Latin-1": Right(
        plus(["+0", "+1", "+2"], more={0: tal("+0.5", "für".encode("latin-1"))}),
        events=[(0.5, 0, "für")],
        faults=["annotation_text"],
    ),
    "EDF+C, annotation with a comma": Right(
        plus(["+0", "+1", "+2"], more={0: tal("+0,5", "a, b")}), events=[(0.5, 0, "a, b")], faults=["decimal_comma"]
    ),
    "EDF+C, onset with more digits than anyone can count": Right(
        plus(["+0", "+1", "+2"], more={0: b"+" + b"9" * 30 + b"\x14x\x14\0"}), faults=["annotation"]
    ),
    "EDF+C, onsets with more digits than a tick": Right(
        plus(["+0." + "0" * 18, "+1", "+2"], more={2: tal("+0.1250000000000000009", "x")}), events=[(0.125, 0, "x")]
    ),
    "EDF+C, a second empty annotation": Right(plus(["+0", "+1", "+2"], more={1: tal("+7"), 2: tal("+0")})),
    "EDF+C without annotations": Right(File(two(), kind="EDF+C")),
    "EDF+D without a gap": Right(plus(["+0", "+1", "+2"], "EDF+D")),
    "EDF+D, gap of 100 s": Right(plus(["+0", "+1", "+102"], "EDF+D"), segments=[(0, 8, 0), (8, 12, 102)]),
    "EDF+D, gaps everywhere": Right(
        plus(["+0", "+1.5", "+3.0625"], "EDF+D"), segments=[(0, 4, 0), (4, 8, 1.5), (8, 12, 3.0625)]
    ),
    "EDF+D, off by less than half a sample": Right(plus(["+0", "+1.12499", "+2"], "EDF+D")),
    "EDF+D, off by exactly half a sample": Right(
        plus(["+0", "+1.125", "+2.125"], "EDF+D"), segments=[(0, 4, 0), (4, 12, 1.125)]
    ),
    "EDF+D, half samples that add up": Right(
        plus(["+0", "+1.1", "+2.2"], "EDF+D"), segments=[(0, 8, 0), (8, 12, 2.2)]
    ),
    "EDF+D, sub-second start and a gap": Right(
        plus(["+0.5", "+1.5", "+12.75"], "EDF+D", {2: tal("+13", "seiz", duration="2")}),
        segments=[(0, 8, 0), (8, 12, 12.25)],
        events=[(12.5, 2, "seiz")],
    ),
    "EDF+D, a time that no float has": Right(
        plus(["+0", "+1.3", "+1000000.1"], "EDF+D"), segments=[(0, 4, 0), (4, 8, 1.3), (8, 12, 1000000.1)]
    ),
    "EDF+D, cut in mid-record": Right(
        bytes(plus(["+0", "+5", "+10"], "EDF+D"))[:-10], segments=[(0, 4, 0), (4, 8, 5)], faults=["truncated"]
    ),
    "plain EDF with annotations": Right(plus(["+0", "+1", "+2"], reserved="")),
    "BDF": Right(File([Wave("Fp1", BIG, **BDF), Wave("Fp2", BIG[::-1], **BDF)], kind="BDF")),
    "BDF, one sample a record": Right(
        File([Wave("Cz", [-1, 1, -2], 1, **BDF)], kind="BDF"), ("Cz",), Fraction(1), [(0, 3, 0)]
    ),
    "BDF with status": Right(
        File([Wave("Status", BIG, unit="Boolean"), Wave("Fp1", BIG, **BDF)], kind="BDF"),
        ("Fp1",),
        waves=[Wave("Fp1", BIG, **BDF)],
    ),
    "BDF cut": Right(
        bytes(File([Wave("Fp1", BIG, **BDF)], kind="BDF"))[:-4], ("Fp1",), segments=[(0, 8, 0)], faults=["truncated"],
        waves=[Wave("Fp1", BIG, **BDF)],
    ),
    "BDF record count -1": Right(
        File([Wave("Fp1", BIG, **BDF)], kind="BDF", stated_records=-1), ("Fp1",), faults=["record_count"]
    ),
    "BDF+C": Right(plus(["+0", "+1", "+2"], "BDF+C", {1: tal("+1", "x")}), events=[(1, 0, "x")]),
    "BDF+D": Right(plus(["+0", "+1", "+9"], "BDF+D"), segments=[(0, 8, 0), (8, 12, 9)]),
}  # fmt: skip

REFUSED = {
    "nothing": Refused(b"", "format"),
    "255 bytes": Refused(bytes(File(two()))[:255], "format"),
    "text": Refused(b"time,Fp1,Fp2\n" * 100, "format"),
    "gzip": Refused(gzip.compress(bytes(File(two(400, 100)))) + b"\0" * 256, "format"),
    "version 1": Refused(File(two(), version="1"), "format"),
    "EDF that says 24 bits": Refused(File(two(), reserved="24BIT"), "format"),
    "no signals": Refused(File([], records=0), "no_signal"),
    "signals no number": Refused(File(two(), stated_signals="two"), "header"),
    "signals negative": Refused(File(two(), stated_signals="-2"), "header"),
    "signals absurd": Refused(File(two(), stated_signals="9999"), "header"),
    "cut within the header": Refused(bytes(File(two()))[:700], "header"),
    "only annotations": Refused(
        File([Notes(timekeeping(["+0", "+1", "+2"]))], kind="EDF+C", duration=0), "no_signal"
    ),
    "only a channel with no samples": Refused(File([Wave("Cz", (), 0)]), "no_signal"),
    "EEG without samples, ECG with": Refused(File([Wave("Cz", (), 0), Wave("ECG", ramp(12))]), "no_signal"),
    "only ECG": Refused(File([Wave("ECG", ramp(12))]), "channels"),
    "0 records": Refused(File(two(0), records=0), "empty"),
    "0 records stated": Refused(File(two(), stated_records=0), "empty"),
    "not one whole record": Refused(bytes(File(two()))[: 768 + 15], "empty"),
    "record count -1, no record": Refused(File(two(0), records=0, stated_records=-1), "empty"),
    "record count -2": Refused(File(two(), stated_records=-2), "header"),
    "record count no number": Refused(File(two(), stated_records="many"), "header"),
    "record count blank": Refused(File(two(), stated_records=""), "header"),
    "record count a fraction": Refused(File(two(), stated_records="2.5"), "header"),
    "duration 0": Refused(File(two(), duration=0), "duration"),
    "duration negative": Refused(File(two(), duration=-1), "duration"),
    "duration no number": Refused(File(two(), duration="nan"), "duration"),
    "duration infinite": Refused(File(two(), duration="inf"), "duration"),
    "duration too short": Refused(File(two(), duration="1e-20"), "duration"),
    "samples no number": Refused(File(two(stated_samples="x")), "header"),
    "samples negative": Refused(File(two(stated_samples=-4)), "header"),
    "samples a fraction": Refused(File(two(stated_samples="4.5")), "header"),
    "samples 0 of a channel that has some": Refused(File([*two(), Wave("Cz", ramp(12), stated_samples=0)]), "header"),
    "samples 0, record count -1": Refused(
        File([*two(36), Wave("Cz", ramp(36), stated_samples=0)], records=9, stated_records=-1), "header"
    ),
    "samples 0 and cut": Refused(bytes(File([*two(), Wave("Cz", ramp(12), stated_samples=0)]))[:-3], "header"),
    "record count too small, or a record too short": Refused(File(two(), stated_records=2), "header"),
    "different samples, record count -1, cut": Refused(
        bytes(File([*two(), Wave("ECG", ramp(6), 2)], stated_records=-1))[:-1], "header"
    ),
    "samples absurd": Refused(File(two(stated_samples="99999999")), "empty"),
    "header bytes wrong, nothing proves it": Refused(
        File(two(), header_bytes=512, stated_records=-1), "header_bytes"
    ),
    "header bytes wrong and cut": Refused(bytes(File(two(), header_bytes=1024))[:-1], "header_bytes"),
    "unit blank": Refused(File(two(unit="")), "unit"),
    "unit NUL": Refused(File(two(unit=b"\0" * 8)), "unit"),
    "unit MV": Refused(File(two(unit="MV")), "unit"),
    "unit mmHg": Refused(File(two(unit="mmHg")), "unit"),
    "unit of degrees": Refused(File(two(unit=b"\xb0C")), "unit"),
    "unit uV with more behind NUL": Refused(File(two(unit=b"uV\0xV")), "unit"),
    "physical minimum = maximum": Refused(File(two(pmin=100)), "physical_range"),
    "physical maximum no number": Refused(File(two(pmax="1O0")), "physical_range"),
    "physical maximum infinite": Refused(File(two(pmax="inf")), "physical_range"),
    "physical maximum of a million digits": Refused(File(two(pmax="1e999999")), "physical_range"),
    "physical maximum with two commas": Refused(File(two(pmax="1,000,0")), "physical_range"),
    "physical maximum beyond any voltage": Refused(File(two(pmax="1e38")), "calibration"),
    "digital minimum = maximum": Refused(File(two(dmin=2047)), "digital_range"),
    "digital minimum > maximum": Refused(File(two(dmin=2047, dmax=-2048)), "digital_range"),
    "digital maximum of unsigned numbers": Refused(File(two(dmin=0, dmax=65535)), "digital_range"),
    "digital maximum a fraction": Refused(File(two(dmax="2047.5")), "digital_range"),
    "mixed rates": Refused(File(MIXED), "mixed_rates"),
    "duplicate labels": Refused(File([*two(), Wave("Fp1", ramp(12))]), "channels"),
    "duplicates by another name": Refused(
        File([Wave("T3", ramp(12)), Wave("EEG T7-REF", ramp(12))]), "channels"
    ),
    "unknown label": Refused(File([*two(), Wave("strange", ramp(12))]), "channels"),
    "label in UTF-8": Refused(File(two(label="Fp¹".encode())), "channels"),
    "none of the channels to keep": Refused(File(two()), "channels", ChannelPolicy(keep=["O1", "O2"])),
    "65 channels": Refused(File([Wave(name, ramp(3), 1) for name in VOCABULARY[:65]]), "channels"),
    "text mode": Refused(doubled(File(feeds())), "text_mode"),
    "text mode, record count -1": Refused(
        doubled(File([Wave("Cz", [10, 266, 2570 - 4096] * 4)], stated_records=-1)), "text_mode"
    ),
    "text mode and cut": Refused(doubled(File([Wave("Cz", [10] * 12)]))[:-3], "text_mode"),
    "EDF+D without annotations": Refused(File(two(), kind="EDF+D"), "onset"),
    "EDF+D, a record without onset": Refused(
        File([*two(), Notes([tal("+0"), b"", tal("+2")])], kind="EDF+D"), "onset"
    ),
    "EDF+D, a broken onset": Refused(
        File([*two(), Notes([tal("+0"), b"+one\x14\x14\0", tal("+2")])], kind="EDF+D"), "onset"
    ),
    "EDF+D, an event in place of the onset": Refused(
        File([*two(), Notes([tal("+0"), tal("+1", "x"), tal("+2")])], kind="EDF+D"), "onset"
    ),
    "EDF+D backward": Refused(plus(["+5", "+1", "+2"], "EDF+D"), "overlap"),
    "EDF+D overlapping": Refused(plus(["+0", "+0.875", "+2"], "EDF+D"), "overlap"),
    "EDF+D, two records at one time": Refused(plus(["+0", "+1", "+1"], "EDF+D"), "overlap"),
    "EDF+C backward": Refused(plus(["+0", "+1", "+0"]), "overlap"),
    "BDF+D without annotations": Refused(File(two(), kind="BDF+D"), "onset"),
    "BDF mixed rates": Refused(File(MIXED, kind="BDF"), "mixed_rates"),
    "BDF physical minimum = maximum": Refused(File(two(pmin=100), kind="BDF"), "physical_range"),
}  # fmt: skip


def written(folder: Path, file: File | bytes) -> Path:
    path = folder / f"{CANARY}.edf"
    path.write_bytes(bytes(file))
    return path


def expected_samples(case: Right, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The samples by the formula of the specification, and one quantum of each channel."""
    waves = case.waves
    if waves is None:
        assert isinstance(case.file, File) or case.file[:1] == b"0"
        signals = case.file.signals if isinstance(case.file, File) else two()
        waves = [s for s in signals if isinstance(s, Wave)][: len(case.names)]
    columns, quanta = [], []
    for wave, scale in zip(waves, case.scale, strict=False):
        as_numbers = [
            float((v if isinstance(v, bytes) else str(v).encode()).strip(b" \0").replace(b",", b"."))
            for v in (wave.pmin, wave.pmax, wave.dmin, wave.dmax)
        ]
        low, high, dmin, dmax = as_numbers
        columns.append(microvolts(wave.counts[:count], low * scale, high * scale, int(dmin), int(dmax)))
        quanta.append(abs(high - low) * scale / (dmax - dmin))
    return np.array(columns).T, np.array(quanta)


def test_there_are_enough_known_answers() -> None:
    assert len(RIGHT) + len(REFUSED) >= 60


@pytest.mark.parametrize("name", RIGHT)
def test_read_right(name: str, tmp_path: Path) -> None:
    case = RIGHT[name]
    recording = open_edf(written(tmp_path, case.file), case.policy, unit=case.unit)
    assert recording.match.names == list(case.names)
    assert recording.sfreq == float(case.sfreq)
    assert recording.segments == tuple(Segment(a, b, float(onset)) for a, b, onset in case.segments)
    assert recording.events == tuple(Event(float(o), float(d), text) for o, d, text in case.events)
    assert [fault.code for fault in recording.faults] == list(case.faults)
    samples = recording.read(0, recording.samples)
    truth, quantum = expected_samples(case, recording.samples)
    assert samples.dtype == np.float32
    assert samples.shape == (case.segments[-1][1], len(case.names))
    np.testing.assert_array_less(np.abs(samples - truth).max(0), quantum)
    # Far nearer than a quantum, but for what float32 cannot hold: a wrong neighbour would not pass.
    np.testing.assert_allclose(samples, truth, rtol=1e-7, atol=quantum.max() * 1e-4)
    assert [fault.code for fault in late_faults(recording)] == list(case.late)
    for fault in (*recording.faults, *late_faults(recording)):
        assert "CANARY" not in fault.note
        assert fault.note.isprintable()


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    case = REFUSED[name]
    with pytest.raises(RecordingError if case.code != "channels" else ChannelError) as caught:
        open_edf(written(tmp_path, case.file), case.policy)
    assert getattr(caught.value, "code", "channels") == case.code
    assert str(caught.value).isprintable(), "one line"
    assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_text_mode_is_seen_across_the_pieces_that_are_searched(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cerebro_eeg.data.reading.edf._CHUNK", chunk)
    for name in ("text mode", "text mode and cut"):
        test_refused(name, tmp_path)
    for name in ("line feeds without carriage returns, cut", "as many line feeds as trailing bytes"):
        test_read_right(name, tmp_path)


def test_duplicates_name_both_labels(tmp_path: Path) -> None:
    with pytest.raises(ChannelError, match="'T3' and 'EEG T7-REF' are both T7"):
        open_edf(written(tmp_path, REFUSED["duplicates by another name"].file))


def test_a_gap_is_in_the_segments_and_the_samples_are_as_they_lie_in_the_file(tmp_path: Path) -> None:
    with_gap = open_edf(written(tmp_path, plus(["+0", "+1", "+102"], "EDF+D")))
    assert with_gap.seconds == 3
    assert with_gap.samples == 12
    first = with_gap.read(0, 12)
    np.testing.assert_array_equal(first, open_edf(written(tmp_path, plus(["+0", "+1", "+2"]))).read(0, 12))


def test_counts_out_of_range_are_kept_and_counted_once(tmp_path: Path) -> None:
    counts = [0, 5, 11, -11, 0, 0, 0, 12, 0, 0, 0, 0]
    waves = [Wave("Fp1", counts, dmin=-10, dmax=10, pmin=-10, pmax=10), Wave("Fp2", [0] * 12)]
    recording = open_edf(written(tmp_path, File(waves)))
    assert late_faults(recording) == ()
    for start, stop in [(0, 3), (3, 8), (0, 8), (8, 12), (0, 12)]:
        np.testing.assert_allclose(recording.read(start, stop)[:, 0], counts[start:stop], atol=1e-6)
    (fault,) = late_faults(recording)
    assert fault.note.startswith("3 samples of 1 channels")


def test_the_header_says_nothing_of_the_patient(tmp_path: Path) -> None:
    file = plus(["+0", "+1", "+2"], patient=CANARY, recording=CANARY, date="11.12.70")
    for signal in file.signals:
        signal.transducer = signal.prefilter = signal.reserved = CANARY
    recording = open_edf(written(tmp_path, file))
    assert "CANARY" not in repr((recording.faults, recording.events, recording.match, recording.subject))
    assert "CANARY" not in repr(recording.read)


def test_a_field_full_of_a_name_is_not_quoted(tmp_path: Path) -> None:
    for field_name in ("stated_records", "duration", "header_bytes"):
        file = File(two(), **{field_name: "JANE DOE"})  # type: ignore[arg-type]
        try:
            faults: object = open_edf(written(tmp_path, file)).faults
        except RecordingError as error:
            faults = str(error)
        assert "JANE" not in str(faults)
    for field_name in ("pmin", "dmax", "stated_samples", "unit"):
        with pytest.raises(RecordingError) as caught:
            open_edf(written(tmp_path, File(two(**{field_name: "JANE DOE"}))))
        assert "JANE" not in str(caught.value)


def test_wrong_use_is_an_error_of_one_line(tmp_path: Path) -> None:
    path = written(tmp_path, File(two()))
    recording = open_edf(path)
    for start, stop in [(-1, 2), (0, 13), (5, 4)]:
        with pytest.raises(InputError, match="the recording has 0 to 12"):
            recording.read(start, stop)
    assert recording.read(12, 12).shape == (0, 2)
    with pytest.raises(ConfigError, match="'Pa' is not a unit of voltage"):
        open_edf(path, unit="Pa")
    with pytest.raises(ChannelError, match="both given"):
        ChannelPolicy(pick=["Fp1"], keep=["Fp1"])
    with pytest.raises(ChannelError, match="keep must name electrodes"):
        open_edf(path, ChannelPolicy(keep=["no electrode"]))
    with pytest.raises(ChannelError, match="single text"):
        ChannelPolicy(keep="Fp1")


def test_a_file_that_is_not_there_or_changes_is_refused_without_its_path(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.edf")
    for path in (tmp_path / f"{CANARY}.none", tmp_path, tmp_path / "pipe.edf"):
        with pytest.raises(RecordingError) as caught:
            open_edf(path)
        assert caught.value.code == "unreadable"
        assert str(tmp_path) not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None or caught.value.__suppress_context__
    path = written(tmp_path, File(two()))
    recording = open_edf(path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(RecordingError) as caught:
        recording.read(0, 1)
    assert caught.value.code == "changed"


WIDE = [Wave("ECG", ramp(70), 7), Wave("Fp1", ramp(50, seed=1), 5), Wave("Cz", (), 0), Wave("Fp2", ramp(50, seed=2), 5)]


@given(a=st.integers(0, 50), b=st.integers(0, 50), block=st.sampled_from([1, 8, 40, 200, 10**6]), bdf=st.booleans())
def test_any_block_equals_the_same_rows_of_the_whole(
    a: int, b: int, block: int, bdf: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also where a record is larger than what may be in memory (``block``, in bytes)."""
    path = tmp_path_factory.getbasetemp() / f"wide{bdf}.edf"
    if not path.exists():
        path.write_bytes(bytes(File(WIDE, "BDF" if bdf else "EDF", records=10)))
    recording = open_edf(path)
    whole = recording.read(0, recording.samples)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cerebro_eeg.data.reading.edf_samples._BLOCK", max(block, 3))
        start, stop = sorted((a, b))
        np.testing.assert_array_equal(recording.read(start, stop), whole[start:stop])


@pytest.mark.parametrize("per_record", [256, 10_000_000])
def test_memory_is_bounded_by_what_is_read(per_record: int, tmp_path: Path) -> None:
    """A sparse file of 8 GB; once with a second in a record, once with records of 80 MB."""
    waves = [Wave(name, (), 0, stated_samples=per_record) for name in ("Fp1", "Fp2", "F3", "F4")]
    records = 8 * 10**9 // (8 * per_record)
    path = written(tmp_path, File(waves, records=0, stated_records=records, duration=per_record // 256))
    with path.open("r+b") as file:
        file.truncate(256 * 5 + records * 8 * per_record)
    tracemalloc.start()
    try:
        recording = open_edf(path)
        assert recording.samples == records * per_record
        middle = recording.samples // 2
        for start in (0, middle, recording.samples - 10_000):
            assert (recording.read(start, start + 10_000) == np.float32(100 * 2048 / 2047.5 - 100)).all()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20e6


def test_memory_is_bounded_when_much_is_read(tmp_path: Path) -> None:
    """Beyond the result itself, a read holds a few blocks."""
    n = 4_000_000
    path = written(tmp_path, File([Wave("Cz", (), 0, stated_samples=1000)], records=0, stated_records=n // 1000))
    with path.open("r+b") as file:
        file.truncate(512 + 2 * n)
    recording = open_edf(path)
    tracemalloc.start()
    try:
        recording.read(0, n)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * n + 45e6


def assert_equal_to_mne(recording: Recording, path: Path, quantum: float) -> None:
    import mne

    reader = mne.io.read_raw_bdf if path.suffix == ".bdf" else mne.io.read_raw_edf
    raw = reader(path, preload=False, verbose="error")
    truth = raw.get_data(picks=list(recording.match.index)).T * 1e6
    assert recording.sfreq == raw.info["sfreq"]
    assert recording.samples == raw.n_times
    np.testing.assert_allclose(recording.read(0, recording.samples), truth, rtol=1e-6, atol=quantum * 1e-3)


@pytest.mark.parametrize("name", ["S001R02.edf", "Subject00_2.edf"])
@pytest.mark.filterwarnings("ignore:Limited 1 annotation")
def test_real_files_equal_mne(name: str, open_eeg: Path) -> None:
    path = open_eeg / "formats" / name
    recording = open_edf(path)
    assert recording.faults == ()
    assert len(recording.match.channels) == {"S001R02.edf": 64, "Subject00_2.edf": 20}[name]
    assert_equal_to_mne(recording, path, 1e-3)
    import edfio

    edf = edfio.read_edf(path)
    assert [(e.onset, e.duration, e.name) for e in recording.events] == [
        (a.onset, a.duration or 0, a.text) for a in edf.annotations
    ]
    for column, index in enumerate(recording.match.index):
        np.testing.assert_allclose(recording.read(0, 1000)[:, column], edf.signals[index].data[:1000], atol=1e-4)


def clean(kind: str) -> File:
    n = 100 * 10
    full = {"dmin": -8388608, "dmax": 8388607} if kind.startswith("BDF") else {"dmin": -32768, "dmax": 32767}
    waves = [Wave(name, ramp(n, seed=i) * 15, 100, **full) for i, name in enumerate(("Fp1", "Cz", "O2"))]
    if "+" not in kind:
        return File(waves, kind, records=10)
    more = {2: tal("+2.25", "Augen zu", duration="1.5"), 7: tal("+7", "Ende")}
    records = timekeeping([f"+{i}" for i in range(10)], more)
    return File([*waves, Notes(records, 40, f"{kind[:3]} Annotations", **full)], kind, records=10)


@pytest.mark.parametrize("kind", ["EDF", "EDF+C", "BDF", "BDF+C"])
def test_clean_files_equal_mne_edfio_and_pyedflib(kind: str, tmp_path: Path) -> None:
    import edfio
    import pyedflib

    path = tmp_path / f"clean.{kind[:3].lower()}"
    path.write_bytes(bytes(clean(kind)))
    recording = open_edf(path)
    samples = recording.read(0, recording.samples)
    quantum = 200 / (2**24 - 1 if kind.startswith("BDF") else 2**16 - 1)
    assert_equal_to_mne(recording, path, quantum)
    events = [(2.25, 1.5, "Augen zu"), (7.0, 0.0, "Ende")] if "+" in kind else []
    assert [(e.onset, e.duration, e.name) for e in recording.events] == events
    with pyedflib.EdfReader(str(path)) as theirs:
        for column in range(3):
            assert theirs.getSampleFrequency(column) == recording.sfreq
            np.testing.assert_allclose(samples[:, column], theirs.readSignal(column), atol=max(quantum, 1e-5))
        onsets, durations, texts = theirs.readAnnotations()
        theirs_events = zip(onsets, np.maximum(durations, 0), texts, strict=True)
        assert [(float(o), float(d), str(t)) for o, d, t in theirs_events] == events
    edf = edfio.read_bdf(path) if kind.startswith("BDF") else edfio.read_edf(path)
    for column in range(3):
        np.testing.assert_allclose(samples[:, column], edf.signals[column].data, atol=max(quantum, 1e-5))
    assert [(a.onset, a.duration or 0, a.text) for a in edf.annotations] == events
