"""Does the size of an EDF or BDF file fit its header? Where it does not: what can be proven is mended, and said.

A header that is counted wrong would turn header into signal, and a single byte too many shifts every sample behind it.
"""

from dataclasses import replace

import numpy as np

from cerebro_eeg.data.reading.edf_header import Header, ReadBytes
from cerebro_eeg.data.reading.recording import Fault
from cerebro_eeg.errors import RecordingError

_CHUNK = 1 << 20
# So many line feeds, each behind a carriage return, are no accident: one in 256**8.
_MANY = 8


def fit(header: Header, read: ReadBytes, size: int) -> Header:
    """The header with ``start`` and ``records`` as they truly are, and a Fault for each that had to be mended."""
    header = _fit_start(header, size)
    body = size - header.start
    exact = header.records * header.record_bytes
    if header.records == -1 or body != exact:
        doubled = _doubled_line_feeds(read, header.start, size)
        if doubled >= _MANY or (doubled and header.records > 0 and body - exact == doubled):
            raise RecordingError(
                "text_mode",
                f"the file went through a transfer in text mode: each of its {doubled} line feeds was given a carriage "
                "return, which shifts all samples; copy it again in binary mode",
            )
    whole, rest = divmod(body, header.record_bytes)
    if header.records == 0:
        raise RecordingError("empty", f"the header says 0 records (the file has bytes for {whole})")
    if whole == 0:
        raise RecordingError(
            "empty", f"not one whole record: a record has {header.record_bytes} bytes, there are {body}"
        )
    faults = list(header.faults)
    if header.records == -1:
        faults.append(Fault("record_count", f"the header says -1 records; {whole} were counted by the file's size"))
        if rest:
            faults.append(Fault("truncated", f"cut in mid-record: {rest} bytes behind the last whole record left out"))
        return replace(header, records=whole, faults=tuple(faults))
    if whole < header.records:
        note = f"cut: {whole} whole records of {header.records}" + (
            f" kept, {rest} bytes left out" if rest else " kept"
        )
        faults.append(Fault("truncated", note))
        return replace(header, records=whole, faults=tuple(faults))
    if body > exact:
        note = f"{body - exact} bytes behind the {header.records} records of the header left out"
        if whole > header.records:
            note += f" (as much as {whole - header.records} more records)"
        faults.append(Fault("trailing", note))
    return replace(header, faults=tuple(faults))


def _fit_start(header: Header, size: int) -> Header:
    """Where records begin. The number of signals fixes it; the header repeats it, and may be wrong."""
    stated, expected = header.stated_start, header.start
    if stated == expected:
        return header
    says = "is not a number" if stated is None else f"is {stated}"
    bytes_of_records = header.records * header.record_bytes
    if header.records > 0 and size == expected + bytes_of_records:
        note = f"the header's own length {says}; the file's size proves {expected}"
        return replace(header, faults=(Fault("header_bytes", note),))
    if header.records > 0 and stated is not None and stated > expected and size == stated + bytes_of_records:
        note = (
            f"the header's own length is {stated} instead of {expected}; the file's size proves it, the rest is skipped"
        )
        return replace(header, start=stated, faults=(Fault("header_bytes", note),))
    raise RecordingError(
        "header_bytes",
        f"the header's own length {says}, its {len(header.signals)} signals need {expected}, and the file's size fits "
        "neither, so it is not known where the samples begin; export the file anew",
    )


def _doubled_line_feeds(read: ReadBytes, start: int, size: int) -> int:
    """How many line feeds lie behind the header, if each follows a carriage return; else 0 (at the first other)."""
    found, last = 0, 0
    for place in range(start, size, _CHUNK):
        data = np.frombuffer(read(place, min(_CHUNK, size - place)), np.uint8)
        feeds = np.flatnonzero(data == 10)
        before = np.where(feeds > 0, data[feeds - 1], last)
        if (before != 13).any():
            return 0
        found += len(feeds)
        last = int(data[-1])
    return found
