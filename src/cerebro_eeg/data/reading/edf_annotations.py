"""Reads the annotations of EDF+ and BDF+: when each record began, which shows the gaps, and the marked events.

The first annotation of a record is empty and states when the record began. Annotation texts are free text of a person:
they become names of Events and never go into a message.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cerebro_eeg.data.reading.edf_header import TICKS, EdfHeader, ReadBytes
from cerebro_eeg.data.reading.recording import Event, Fault, Segment
from cerebro_eeg.errors import RecordingError

_TIME = rb"([0-9]{1,12})(?:[.,]([0-9]{0,15})[0-9]*)?"
_TAL = re.compile(rb"([+-])" + _TIME + rb"(?:\x15" + _TIME + rb")?\x14(.*)\x14", re.DOTALL)
_STAMP = re.compile(rb"[+-]" + _TIME + rb"\x14\x14")
_MOST_BYTES = 1 << 24  # of annotations in one record; real ones have some hundreds
_MOST_EVENTS = 250_000


def read_timeline(read: ReadBytes, header: EdfHeader, samples: int) -> "Timeline":
    """Return segments and events of a file whose EEG has ``samples`` samples per record.

    Time 0 is the first sample. A record continues its segment when it begins less than half a sample from its expected
    time. A later start is a gap. An earlier start is refused, because two records cannot both be true then.

    A file that says it is continuous may drift slowly, for example by a rounded duration. So its record may also follow
    the record in front of it, and the drift becomes a Fault instead of a gap.
    """
    marks = _Marks()
    if not any(signal.is_annotation and signal.samples for signal in header.signals):
        if header.discontinuous:
            raise _no_onset(0, header.records)
        return Timeline((Segment(0, header.records * samples, 0.0),), (), ())
    segments: list[tuple[int, int]] = []  # first record, onset in ticks
    end = drift = 0
    for record, stated in enumerate(_onsets(read, header, marks)):
        if stated is None and header.discontinuous:
            raise _no_onset(record, header.records)
        if record == 0:
            onset = stated or 0
            segments.append((0, onset))
        else:
            first, start = segments[-1]
            steady = start + (record - first) * header.duration
            expected = steady if header.discontinuous else max(steady, end)
            onset = expected if stated is None else stated
            off = abs(onset - steady)
            if 2 * samples * (off if header.discontinuous else min(off, abs(onset - end))) < header.duration:
                drift = max(drift, off)
            elif onset < expected:
                raise RecordingError(
                    "overlap",
                    f"record {record + 1} of {header.records} begins {(expected - onset) / TICKS:g} s before the one "
                    "in front of it ends; export the file anew",
                )
            else:
                segments.append((record, onset))
        end = onset + header.duration
    origin = segments[0][1]
    stops = [first for first, _ in segments[1:]] + [header.records]
    faults = marks.faults()
    if len(segments) > 1 and not header.discontinuous:
        note = f"said to be continuous, but its records leave {len(segments) - 1} gaps by their times; these were kept"
        faults += (Fault("discontinuous", note),)
    if 2 * samples * drift >= header.duration:
        note = f"its records drift up to {drift / TICKS:g} s from the header's rate, without a jump; the rate was kept"
        faults += (Fault("drift", note),)
    return Timeline(
        tuple(
            Segment(first * samples, stop * samples, (onset - origin) / TICKS)
            for (first, onset), stop in zip(segments, stops, strict=True)
        ),
        tuple(Event((onset - origin) / TICKS, length / TICKS, name) for onset, length, name in marks.events),
        faults,
        marks.commas,
    )


def is_time_stamp(data: bytes) -> bool:
    """Return whether the bytes begin as the annotations of every record do: with the time at which it began."""
    return _STAMP.match(data) is not None


def _onsets(read: ReadBytes, header: EdfHeader, marks: "_Marks") -> Iterator[int | None]:
    """Yield the stated onset of each record in ticks, None where it has none; collect events in ``marks``."""
    signals = [signal for signal in header.signals if signal.is_annotation and signal.samples]
    if sum(signal.samples for signal in signals) * header.width > _MOST_BYTES:
        raise RecordingError(
            "header", f"more than {_MOST_BYTES} bytes of annotations in a record; export the file anew"
        )
    for record in range(header.records):
        place = header.start + record * header.record_bytes
        onset = None
        for index, signal in enumerate(signals):
            found = _read_signal(read(place + signal.offset, signal.samples * header.width), marks, index == 0)
            onset = found if index == 0 else onset
        if onset is None:
            marks.without_onset += 1
        yield onset


def _read_signal(data: bytes, marks: "_Marks", keeps_time: bool) -> int | None:
    """Parse the annotations of one signal in one record; return the first onset if it keeps the record's time."""
    onset = None
    first = keeps_time
    for chunk in data.rstrip(b"\0").split(b"\0"):
        if not chunk:
            continue
        found = _TAL.fullmatch(chunk)
        if found is None:
            marks.broken += 1
        else:
            sign, seconds, part, long, long_part, texts = found.groups()
            time = _ticks(seconds, part) * (-1 if sign == b"-" else 1)
            marks.commas += b"," in chunk[: found.start(6)]
            if first and not texts.partition(b"\x14")[0]:
                onset = time
            if texts:
                marks.add(time, _ticks(long or b"0", long_part), texts)
        first = False
    return onset


def _ticks(whole: bytes, part: bytes | None) -> int:
    return int(whole) * TICKS + int((part or b"").ljust(15, b"0"))


def _no_onset(record: int, records: int) -> RecordingError:
    return RecordingError(
        "onset",
        f"the header says that there may be gaps, but record {record + 1} of {records} does not say when it began; "
        "export the file anew",
    )


@dataclass(frozen=True)
class Timeline:
    """When the samples were taken, and the marked events."""

    segments: tuple[Segment, ...]
    events: tuple[Event, ...]
    faults: tuple[Fault, ...]
    commas: int = 0


class _Marks:
    """Collects events and counts faults while the records are read."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int, str]] = []
        self.broken = self.recoded = self.left_out = self.without_onset = self.commas = 0

    def add(self, onset: int, length: int, texts: bytes) -> None:
        for text in texts.split(b"\x14"):
            if len(self.events) == _MOST_EVENTS:
                self.left_out += 1
                continue
            try:
                name = text.decode("utf-8").strip()
            except UnicodeDecodeError:
                name = text.decode("latin-1").strip()
                self.recoded += 1
            if name:
                self.events.append((onset, length, name))

    def faults(self) -> tuple[Fault, ...]:
        notes = {
            "annotation": (self.broken, "annotations are broken and were left out"),
            "annotation_text": (self.recoded, "annotation texts are not UTF-8 and were read as Latin-1"),
            "annotation_count": (self.left_out, f"annotations beyond {_MOST_EVENTS} were left out"),
            "onset": (self.without_onset, "records do not say when they began; taken as following the one before"),
        }
        return tuple(Fault(code, f"{count} {note}") for code, (count, note) in notes.items() if count)
