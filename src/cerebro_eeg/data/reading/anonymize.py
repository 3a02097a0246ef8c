"""Copies an EDF or BDF file without saying who was recorded, where, when or by whom; no sample changes.

The header is built anew from the parts that can be understood: numbers, known units, filters in the form that EDF+
prescribes, and known labels. All other content of a field is left behind. So are bytes between the header and the first
record, and behind the last whole record.

Annotations keep their times. Listed texts stay, and the others become a blank. The start becomes 1 January 1985,
00:00:00, which EDF+ prescribes for an unknown date.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from cerebro_eeg.channels.names import parse
from cerebro_eeg.data.reading.edf import fit
from cerebro_eeg.data.reading.edf_annotations import _TAL
from cerebro_eeg.data.reading.edf_header import TICKS, EdfHeader, EdfSignal, ReadBytes, number, read_header, text
from cerebro_eeg.data.reading.edf_samples import UNITS, opened
from cerebro_eeg.data.reading.recording import Fault
from cerebro_eeg.errors import RecordingError

_PIECE = 1 << 22  # bytes in memory at a time
_MOST_NOTES = 1 << 24  # bytes of one annotation signal per record; real ones have some hundreds
_KINDS = (b"EDF+C", b"EDF+D", b"BDF+C", b"BDF+D")
_MORE_UNITS = {
    "%",
    "mmHg",
    "bpm",
    "BPM",
    "degC",
    "degF",
    "deg",
    "K",
    "Hz",
    "s",
    "ms",
    "Boolean",
    "cmH2O",
    "l/s",
    "L/min",
}
_FILTER = r"(?:HP|LP|N):? ?(?:[0-9]{1,5}(?:[.,][0-9]{1,5})?|DC) ?(?:Hz|kHz|mHz|s|ms)?"  # longer ones may be a date
_PREFILTER = re.compile(rf"{_FILTER}(?:[ ;,]+{_FILTER})*", re.IGNORECASE)


_TAIL = re.compile(r"(?:[ 0-9+/._:-]|(?:left|right|ref|le|i{1,3}|[lr])(?![a-z]))*", re.IGNORECASE)
_HIDDEN = re.compile(rb"[+-][0-9]+(?:[.,][0-9]*)?(?:\x15[0-9.,]*)?\x14")  # how an annotation begins


@dataclass
class Anonymized:
    """Counts of what was copied, kept and removed."""

    kind: str
    """One of EDF, EDF+C, EDF+D, BDF, BDF+C and BDF+D, as in the header."""
    signals: int
    records: int
    seconds: float
    faults: tuple[Fault, ...]
    """Faults of the file that were mended."""
    kept: Counter[str] = field(default_factory=Counter)
    """Number of annotations per listed text."""
    blanked: int = 0
    """Annotation texts that became a blank."""
    broken: int = 0
    """Annotations that could not be read; each became a question mark."""
    renamed: int = 0
    """Labels that became ``signal 1``, ``signal 2``, ... or lost the part that was not understood."""
    cleared: int = 0
    """Fields of signals that were emptied, because they held no number, known unit or filter."""


def copy_anonymous(source: Path, target: Path, events: Collection[str]) -> Anonymized:
    """Write the anonymous copy of ``source`` to ``target``, which the caller makes atomic.

    ``events`` are the annotation texts that stay, in the form of ``Event.name``. Memory does not grow with the file.
    """
    with opened(source) as (read, stamp), target.open("wb") as file:
        header = fit(read_header(read, stamp.size), read, stamp.size)
        _refuse_hidden(read, header)
        kind = _kind(read, header)
        seconds = header.records * header.duration / TICKS
        done = Anonymized(kind, len(header.signals), header.records, seconds, header.faults)
        file.write(_fixed(read, header, kind) + _fields(read, header, done))
        for place, count, is_notes in _stretches(header):
            if is_notes:
                file.write(_notes(read(place, count), frozenset(events), done))
            else:
                _copy(read, place, count, file)
    return done


def _kind(read: ReadBytes, header: EdfHeader) -> str:
    """Return the kind of file that the reserved field may go on stating, parsed as the reader parses it."""
    own = "EDF" if header.width == 2 else "BDF"
    stated = read(192, 44).strip(b" \0").upper()[:5]
    return own + stated[3:].decode() if stated in _KINDS else own


def _refuse_hidden(read: ReadBytes, header: EdfHeader) -> None:
    """Refuse annotations under another label than EDF+ prescribes; they would be copied as samples, with their text."""
    for index, signal in enumerate(header.signals):
        if signal.is_annotation or not signal.samples:
            continue
        start = read(header.start + signal.offset, min(64, signal.samples * header.width)) if header.records else b""
        if "annotation" in signal.label.casefold() or _HIDDEN.match(start):
            raise RecordingError(
                "annotation",
                f"signal {index + 1} looks like annotations, and its label is not 'EDF Annotations' or 'BDF "
                "Annotations': its texts would stay; mend the label and start again",
            )


def _fixed(read: ReadBytes, header: EdfHeader, kind: str) -> bytes:
    """Build the first 256 bytes."""
    parts = (
        (8, b"0" if header.width == 2 else b"\xffBIOSEMI"),
        (80, b"X X X X"),
        (80, b"Startdate X X X X"),
        (8, b"01.01.85"),
        (8, b"00.00.00"),
        (8, b"%d" % (256 * (1 + len(header.signals)))),
        (44, {"EDF": b"", "BDF": b"24BIT"}.get(kind, kind.encode())),
        (8, b"%d" % header.records),
        (8, read(244, 8).strip(b" \0")),  # a number, or the header would have been refused
        (4, b"%d" % len(header.signals)),
    )
    return b"".join(value.ljust(size) for size, value in parts)


def _fields(read: ReadBytes, header: EdfHeader, done: Anonymized) -> bytes:
    """Build the fields of the signals: each lies there once per signal before the next begins."""

    def label(raw: bytes, signal: EdfSignal, index: int) -> bytes:
        own = signal.label.strip()
        known = own if signal.is_annotation else _understood(own)
        if known == own:
            return raw.strip(b" \0")
        done.renamed += 1
        return known.encode("latin-1") if known else b"signal %d" % (index + 1)

    def plain(raw: bytes, signal: EdfSignal, index: int) -> bytes:
        return _kept(raw, number(raw) is not None, done)

    def unit(raw: bytes, signal: EdfSignal, index: int) -> bytes:
        return _kept(raw, text(raw) in UNITS or text(raw) in _MORE_UNITS, done)

    def prefilter(raw: bytes, signal: EdfSignal, index: int) -> bytes:
        return _kept(raw, _PREFILTER.fullmatch(text(raw)) is not None, done)

    def nothing(raw: bytes, signal: EdfSignal, index: int) -> bytes:
        return _kept(raw, False, done)

    rules: tuple[tuple[int, Callable[[bytes, EdfSignal, int], bytes]], ...] = (
        (16, label),
        (80, nothing),  # transducer
        (8, unit),
        (8, plain),  # physical minimum, maximum, digital minimum, maximum
        (8, plain),
        (8, plain),
        (8, plain),
        (80, prefilter),
        (8, plain),  # samples in a record
        (32, nothing),  # reserved
    )
    parts, place = [], 256
    for size, rule in rules:
        for index, signal in enumerate(header.signals):
            parts.append(rule(read(place, size), signal, index).ljust(size))
            place += size
    return b"".join(parts)


def _understood(label: str) -> str:
    """Return the part of a label that says which signal it is; a name may stand beside ``ECG`` or a number."""
    found = parse(label)
    if found.channel is not None:
        return label
    if found.outcome == "unknown":
        return ""
    for size in range(1, len(label) + 1):
        part = parse(label[:size])
        if (part.outcome, part.note) == (found.outcome, found.note):
            break
    if found.note == "not EEG by its name":  # the word that says so is the last one
        return re.split(r"[^A-Za-z0-9]+", label[:size].strip())[-1]
    tail = _TAIL.match(label, size)
    return label[: tail.end() if tail else size].strip()


def _kept(raw: bytes, harmless: bool, done: Anonymized) -> bytes:
    value = raw.strip(b" \0")
    if harmless or not value:
        return value
    done.cleared += 1
    return b""


def _stretches(header: EdfHeader) -> Iterator[tuple[int, int, bool]]:
    """Yield place, length and whether it is annotations for all bytes of the records, in order."""
    end = header.start + header.records * header.record_bytes
    notes = [signal for signal in header.signals if signal.is_annotation and signal.samples]
    if any(signal.samples * header.width > _MOST_NOTES for signal in notes):
        raise RecordingError(
            "header", f"more than {_MOST_NOTES} bytes of annotations in a record; export the file anew"
        )
    at = header.start
    for record in range(header.records if notes else 0):
        for signal in notes:
            place, size = header.start + record * header.record_bytes + signal.offset, signal.samples * header.width
            if place > at:
                yield at, place - at, False
            yield place, size, True
            at = place + size
    if end > at:
        yield at, end - at, False


def _copy(read: ReadBytes, place: int, count: int, file: BinaryIO) -> None:
    for start in range(place, place + count, _PIECE):
        file.write(read(start, min(_PIECE, place + count - start)))


def _notes(data: bytes, events: frozenset[str], done: Anonymized) -> bytes:
    """Rewrite the annotations of one signal in one record in as many bytes; the first keeps time and stays first."""
    chunks = [_note(chunk, events, done) for chunk in data.rstrip(b"\0").split(b"\0") if chunk]
    return b"\0".join(chunks).ljust(len(data), b"\0")


def _note(chunk: bytes, events: frozenset[str], done: Anonymized) -> bytes:
    found = _TAL.fullmatch(chunk)
    if found is None:
        done.broken += 1
        return b"?"  # stays broken, so that nothing else becomes the first
    return chunk[: found.start(6)] + b"\x14".join(_text(own, events, done) for own in found[6].split(b"\x14")) + b"\x14"


def _text(own: bytes, events: frozenset[str], done: Anonymized) -> bytes:
    """Return a listed text, or a blank; an empty text stays, because it says when a record began."""
    if not own:
        return b""
    name = text(own).strip()
    if name in events:
        done.kept[name] += 1
        return own
    done.blanked += bool(name)
    return b" "
