"""Opens EDF, EDF+, BDF and BDF+ files as a Recording.

A file is read correctly, or refused with a RecordingError, or mended with a Fault. Only channels that are EEG by their
label must be sound; the others may have any unit, rate or range. Nothing is upsampled.

The codes of a RecordingError:

``unreadable`` the system cannot read the file; ``format`` it is no EDF or BDF; ``header`` a field that locates the
samples is broken, or the file's size speaks against it; ``header_bytes`` the samples begin at an unknown place;
``no_signal`` it has annotations only; ``empty`` it has not one whole record; ``duration`` the rate is unknown; ``unit``
blank or unknown; ``mixed_rates``; ``physical_range`` and ``digital_range`` minimum and maximum are equal or broken;
``calibration`` beyond any voltage; ``onset`` gaps at unknown places; ``overlap`` two records at one time; ``text_mode``
line feeds were doubled; ``changed`` the file has changed since it was opened.

The codes of a Fault:

``header_bytes`` and ``record_count`` are wrong in the header, and the file's size proves the right value;
``truncated`` whole records were kept; ``trailing`` bytes were left out; ``decimal_comma`` was read as a point;
``no_samples`` a channel without samples was dropped; ``unit`` was taken as the caller said; ``discontinuous`` a file
that claims to be continuous has gaps; ``drift`` of its records; ``onset`` a record has no time; ``annotation``,
``annotation_text``, ``annotation_count`` annotations are broken, not UTF-8, or too many; ``duplicate`` one or none
of several channels with one name was used. After reading, ``late_faults`` adds ``out_of_range``.

The file's size must fit its header, because one byte too many shifts every sample behind it. ``fit`` mends what the
size proves and refuses the rest.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from cerebro_eeg.channels.report import ChannelMatch
from cerebro_eeg.data.reading.edf_annotations import is_time_stamp, read_timeline
from cerebro_eeg.data.reading.edf_header import TICKS, EdfHeader, EdfSignal, ReadBytes, read_header
from cerebro_eeg.data.reading.edf_samples import UNITS, EdfSamples, calibrate, opened
from cerebro_eeg.data.reading.edf_twins import settle_twins
from cerebro_eeg.data.reading.recording import ChannelPolicy, Fault, Recording
from cerebro_eeg.errors import ConfigError, RecordingError

_STRICT = ChannelPolicy()


def open_edf(path: Path, policy: ChannelPolicy = _STRICT, *, unit: str | None = None) -> Recording:
    """Open an EDF or BDF file; reads the header and the annotations now, and samples when they are asked for.

    Parameters
    ----------
    policy : what becomes of labels that are unknown, duplicate or too many, and which channels to keep.
    unit : "uV", "nV", "mV" or "V", for EEG channels whose own unit is blank or unknown; without it they are refused.
    """
    if unit is not None and unit not in UNITS:
        raise ConfigError(f"unit={unit!r} is not a unit of voltage; use one of 'uV', 'nV', 'mV', 'V'")
    with opened(path) as (read, stamp):
        header = fit(read_header(read, stamp.size), read, stamp.size)
        match, faults = settle_twins(policy.match([signal.label for signal in header.signals]), policy, header, read)
        match, empty = _with_samples(match, header.signals)
        signals = tuple(header.signals[index] for index in match.index)
        _check_one_rate(signals, header.duration)
        calibrations = tuple(calibrate(signal, header.width, unit) for signal in signals)
        timeline = read_timeline(read, header, signals[0].samples)
    faults = (*header.faults, *faults, *empty, *timeline.faults)
    assumed = sum(how.assumed for how in calibrations)
    if assumed:
        faults += (Fault("unit", f"{assumed} channels have no unit that we know; taken as {unit}, as asked for"),)
    commas = header.commas + timeline.commas + sum(how.commas for how in calibrations)
    if commas:
        faults += (Fault("decimal_comma", f"{commas} numbers have a comma; read as a decimal point"),)
    return Recording(
        sfreq=signals[0].samples * TICKS / header.duration,
        match=match,
        segments=timeline.segments,
        read=EdfSamples(path, stamp, header, signals, calibrations),
        events=timeline.events,
        faults=faults,
    )


def late_faults(recording: Recording) -> tuple[Fault, ...]:
    """Return the faults among the samples that were read so far; () for files that are not EDF or BDF."""
    return recording.read.faults() if isinstance(recording.read, EdfSamples) else ()


def _with_samples(match: ChannelMatch, signals: tuple[EdfSignal, ...]) -> tuple[ChannelMatch, tuple[Fault, ...]]:
    """Return the match without channels that have no samples in a record."""
    empty = [index for index in match.index if not signals[index].samples]
    if not empty:
        return match, ()
    rows = list(match.rows)
    for index in empty:
        rows[index] = replace(rows[index], outcome="dropped", channel=None, note="no samples in the file")
    match = ChannelMatch(tuple(rows))
    if not match.channels:
        raise RecordingError("no_signal", "no EEG channel has samples")
    names = ", ".join(rows[index].label for index in empty)
    return match, (Fault("no_samples", f"{len(empty)} channels without samples were dropped: {names}"),)


def _check_one_rate(signals: tuple[EdfSignal, ...], duration: int) -> None:
    rates: dict[int, int] = {}
    for signal in signals:
        rates[signal.samples] = rates.get(signal.samples, 0) + 1
    if len(rates) > 1:
        found = ", ".join(f"{count} at {samples * TICKS / duration:g} Hz" for samples, count in sorted(rates.items()))
        raise RecordingError(
            "mixed_rates",
            f"EEG channels have different rates ({found}); pick channels of one rate, nothing is resampled on reading",
        )


_CHUNK = 1 << 20
# So many line feeds, each behind a carriage return, happen by chance once in 256**8.
_MANY = 8


def fit(header: EdfHeader, read: ReadBytes, size: int) -> EdfHeader:
    """Return the header with the true ``start`` and ``records``, and a Fault for each value that had to be mended."""
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
    if body != exact:
        _check_layout(header, read, body)
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


def _fit_start(header: EdfHeader, size: int) -> EdfHeader:
    """Find where the records begin. The number of signals fixes it; the header repeats it and may be wrong."""
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


def _check_layout(header: EdfHeader, read: ReadBytes, body: int) -> None:
    """Refuse a file whose size says that a signal has another number of samples than the header states.

    One wrong number moves the samples of every signal behind it. The size then fits the stated number of records, but
    records of another length. A cut file, or one with bytes behind its end, hardly ever does so. Time stamps at their
    place in every record prove the layout, and signals that are all equally long speak for it.
    """
    if _time_stamps_fit(header, read, body // header.record_bytes):
        return
    lengths = [signal.samples for signal in header.signals if not signal.is_annotation]
    alike = len(set(lengths)) == 1 and 1 < len(lengths) == len(header.signals)
    size, samples = body // header.width, header.record_bytes // header.width
    if header.records == -1:
        usual = samples - sum(lengths) + len(lengths) * max(lengths, key=lengths.count)
        unsure = not alike and (body % header.record_bytes != 0 or (usual != samples and size % usual == 0))
    else:
        fits = body % (header.records * header.width) == 0
        # A cut that takes more than one signal from every record is no wrong number of one.
        unsure = fits and not (alike and samples - size // header.records > lengths[0])
    if unsure or 0 in lengths:
        raise RecordingError(
            "header",
            f"by the header a record has {header.record_bytes} bytes, which do not fit the file's size, and no signal "
            "proves them; a wrong number of samples would shift every channel behind it; export the file anew",
        )


def _time_stamps_fit(header: EdfHeader, read: ReadBytes, records: int) -> bool:
    """Return whether two or more records have a time stamp where the header says that annotations begin."""
    first = next((signal for signal in header.signals if signal.is_annotation and signal.samples), None)
    if first is None or records < 2:
        return False
    count = min(first.samples * header.width, 64)
    places = {0, 1, records - 1, *range(0, records, max(1, records // 16))}
    begins = (read(header.start + number * header.record_bytes + first.offset, count) for number in sorted(places))
    return all(is_time_stamp(data) for data in begins)


def _doubled_line_feeds(read: ReadBytes, start: int, size: int) -> int:
    """Count the line feeds behind the header if each follows a carriage return; return 0 at the first that does not."""
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
