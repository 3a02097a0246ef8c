"""Damaged EDF and BDF files, by the thousand: each is a Recording that keeps its word, or an error of ours in one line.

A mutant is a pure function of its number, so that a failure names the file: ``mutant(number)`` gives its bytes.
"""

import math
import time
import tracemalloc
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from cerebro_eeg.data.reading.edf import late_faults, open_edf
from cerebro_eeg.data.reading.recording import ChannelPolicy
from cerebro_eeg.errors import ChannelError, RecordingError
from edf_files import File, Notes, Wave, ramp, tal, timekeeping

CANARY = "CANARY"
POLICIES = (ChannelPolicy(), ChannelPolicy(unknown="drop", duplicates="first", too_many="nearest"))


def _seed(kind: str, rates: tuple[int, ...] = (50, 50, 50), records: int = 8, gap: bool = False) -> bytes:
    names = ("Fp1", "EEG Cz-REF", "T3", "ECG")
    signals: list[Wave | Notes] = [
        Wave(name, ramp(rate * records, seed=i), rate, transducer=CANARY)
        for i, (name, rate) in enumerate(zip(names, rates, strict=False))
    ]
    if "+" in kind:
        onsets = [f"+{i + (100 if gap and i > records // 2 else 0)}" for i in range(records)]
        more = {1: tal("+1.5", "open", duration="0.5"), 6: tal("+6.25", "a", "b")}
        signals.append(Notes(timekeeping(onsets, more), 25, f"{kind[:3]} Annotations"))
    return bytes(File(signals, kind, records=records, patient=CANARY, recording=CANARY))


SEEDS = {
    "EDF": _seed("EDF"),
    "EDF+C": _seed("EDF+C"),
    "EDF+D": _seed("EDF+D", gap=True),
    "BDF": _seed("BDF"),
    "BDF+D": _seed("BDF+D", gap=True),
    "mixed rates": _seed("EDF", (50, 50, 50, 13)),
    "one channel": _seed("EDF", (50,)),
}
NASTY = [
    *(b"0", b"-1", b"1", b"-0", b"2", b"3", b"255", b"256", b"257", b"512", b"1024", b"65535", b"65536", b"9999"),
    *(b"99999999", b"-9999999", b"1e308", b"1e99", b"1e999999", b"1e-99", b"1e-9", b"0.99", b"0,99", b"1,5"),
    *(b"nan", b"inf", b"-inf", b"", b" ", b"\0\0\0\0", b"\xff\xff\xff", b"\n", b"\r\n", b"+", b"-", b".", b",", b"e"),
    *(b"0x10", b"1_0", b"\xb2", b"1 2", b"%s%n", b"'", b"uV", b"mV", b"V", b"nV", b"\xb5V", "µV".encode(), b"UV\0\0"),
    *(b"Fp1", b"Fp2", b"T7", b"A1", b"B1", b"E1", b"EDF Anno", b"Status", b"EDF+C", b"EDF+D", b"BDF+D", b"24BIT"),
    *(b"EDF Annotations ", b"BDF Annotations ", b"\x14\x14\0", b"+0\x14\x14\0", "١٢".encode()),
]  # fmt: skip
_WIDTHS = (16, 80, 8, 8, 8, 8, 8, 80, 8, 32)
_FIXED = [(0, 8), (8, 80), (88, 80), (168, 8), (176, 8), (184, 8), (192, 44), (236, 8), (244, 8), (252, 4)]


def _header_fields(data: bytes) -> list[tuple[int, int]]:
    count = int(data[252:256])
    places, at = list(_FIXED), 256
    for width in _WIDTHS:
        places += [(at + i * width, width) for i in range(count)]
        at += width * count
    return places


def _damage(data: bytes, fields: list[tuple[int, int]], rng: np.random.Generator) -> bytes:
    kind = rng.choice(["field", "header", "body", "cut", "append", "shift", "repeat", "text"], p=_CHANCES)
    out = bytearray(data)
    head = min(fields[-1][0] + fields[-1][1], len(out))
    if not out:
        return b""
    if kind == "field":
        # The fields that a reader reads, and now and then any.
        read = [f for f in fields if f[1] in (4, 8, 16, 44)] if rng.random() < 0.9 else fields
        at, width = read[rng.integers(len(read))]
        out[at : at + width] = NASTY[rng.integers(len(NASTY))][:width].ljust(
            width, b" " if rng.random() < 0.8 else b"\0"
        )
    elif kind in ("header", "body"):
        low, high = (0, head) if kind == "header" or head >= len(out) else (head, len(out))
        for _ in range(rng.integers(1, 20)):
            out[rng.integers(low, high)] = rng.integers(256)
    elif kind == "cut":
        del out[rng.integers(len(out)) :]
    elif kind == "append":
        out += rng.bytes(rng.integers(1, 2000))
    elif kind == "shift":
        at = int(rng.integers(180, len(out))) if len(out) > 180 else 0
        if rng.random() < 0.5:
            out[at:at] = rng.bytes(rng.integers(1, 9))
        else:
            del out[at : at + int(rng.integers(1, 9))]
    elif kind == "repeat":
        at = int(rng.integers(len(out)))
        out[at:at] = out[at : at + int(rng.integers(1, 600))]
    else:
        return bytes(out).replace(b"\n", b"\r\n")
    return bytes(out)


_CHANCES = (0.5, 0.12, 0.12, 0.08, 0.06, 0.05, 0.03, 0.04)


def mutant(number: int) -> bytes:
    rng = np.random.default_rng([20, number])
    data = list(SEEDS.values())[number % len(SEEDS)]
    fields = _header_fields(data)
    for _ in range(rng.choice([1, 2, 3], p=[0.7, 0.2, 0.1])):
        data = _damage(data, fields, rng)
    return data


def _outcome(path: Path, policy: ChannelPolicy) -> str:
    """The code of the error, or "read" where the recording keeps its word."""
    try:
        recording = open_edf(path, policy)
        samples = recording.read(0, recording.samples)
    except (RecordingError, ChannelError) as error:
        message = str(error)
        assert message.isprintable(), "one line"
        assert CANARY not in message
        return error.code if isinstance(error, RecordingError) else "channels"
    channels = len(recording.match.channels)
    assert channels == len(set(recording.match.channels)) > 0
    assert samples.dtype == np.float32
    assert samples.shape == (recording.samples, channels)
    assert recording.samples > 0
    assert np.isfinite(samples).all()
    third = recording.samples // 3
    np.testing.assert_array_equal(recording.read(third, 2 * third), samples[third : 2 * third])
    assert math.isfinite(recording.sfreq)
    assert recording.sfreq > 0
    assert recording.segments[0].start == 0
    assert recording.segments[0].onset == 0
    for a, b in pairwise(recording.segments):
        assert a.start < a.stop == b.start < b.stop
        # Exact in whole numbers; as floats with the rounding of an onset.
        assert b.onset >= a.onset + (a.stop - a.start) / recording.sfreq - 1e-9 * max(1.0, b.onset)
    assert all(math.isfinite(event.onset) and event.duration >= 0 and event.name for event in recording.events)
    for fault in (*recording.faults, *late_faults(recording)):
        assert fault.note.isprintable()
        assert CANARY not in fault.note
    return "read"


def _run(numbers: range, folder: Path) -> Counter[str]:
    path = folder / "mutant.edf"
    outcomes: Counter[str] = Counter()
    tracemalloc.start()
    try:
        for number in numbers:
            data = mutant(number)
            path.write_bytes(data)
            tracemalloc.reset_peak()
            before, clock = tracemalloc.get_traced_memory()[0], time.process_time()
            try:
                outcomes[_outcome(path, POLICIES[number // len(SEEDS) % len(POLICIES)])] += 1
            except Exception as error:
                raise AssertionError(f"mutant({number}) of {len(data)} bytes") from error
            # Processor time, which a busy machine does not lengthen: this is about hanging, not about speed.
            assert time.process_time() - clock < 2, f"mutant({number}) took too long"
            assert tracemalloc.get_traced_memory()[1] - before < 8e6, f"mutant({number}) took too much memory"
    finally:
        tracemalloc.stop()
    assert outcomes.total() == len(numbers)
    return outcomes


def test_the_seeds_are_sound(tmp_path: Path) -> None:
    for name, data in SEEDS.items():
        path = tmp_path / "seed.edf"
        path.write_bytes(data)
        recording = open_edf(path)
        assert recording.faults == ()
        assert len(recording.segments) == (2 if "+D" in name else 1)
        assert _outcome(path, POLICIES[0]) == "read"


def test_a_thousand_mutants(tmp_path: Path) -> None:
    outcomes = _run(range(1_000), tmp_path)
    # The mutants are neither harmless nor hopeless, and reach most of what can be refused.
    assert 200 < outcomes["read"] < 800
    assert len(outcomes) >= 12, outcomes


@pytest.mark.soak
def test_twenty_thousand_mutants(tmp_path: Path) -> None:
    outcomes = _run(range(1_000, 21_000), tmp_path)
    assert 4_000 < outcomes["read"] < 16_000
    print(outcomes)
