"""Reads the tables that headsets write: Muse (muse-lsl), Emotiv EPOC (its SDK) and OpenBCI (its GUI, version 5).

The names of the columns tell which device it is; any other table is refused. A text cannot be read from its middle, so
the EEG columns are held in memory as float32. Muse takes 14 MB per hour, and opening takes 100 MB per hour for a
moment, measured on 4 h.

The text is CSV, also gzipped, and is read strictly and in blocks. A missing value becomes NaN. A value that is no
number is refused, and so is a row with another number of columns, except a last row that was cut. Semicolons and tabs
separate as well; with them a comma is a decimal comma. Errors name row and column and never quote the value.

Time comes from the time stamps or counters beside the samples. A computer takes the stamps, and they jitter, most when
samples arrive in packets; the device's own clock does not. So time within a segment runs at the device's nominal rate,
and stamps only show where samples are missing, and how many.

The units are those that the makers document:

Muse: microvolts, "12 bits on a 2 mVpp range", 256 Hz (github.com/alexandrebarachant/muse-lsl, muselsl/muse.py and
constants.py). Emotiv: "expressed in microvolts but converted directly from a 14-bit unsigned integer", with a floating
level of about 4200 uV that stays in the samples (emotiv.com/knowledge-base/what-do-the-values-from-the-sensors-mean-2,
emotiv.gitbook.io/emotivpro-v3); EPOC 128 Hz, COUNTER goes from 0 to 128. OpenBCI: microvolts, the rate in the head
(docs.openbci.com/Software/OpenBCISoftware/GUIDocs, "%Other Columns = EEG data in microvolts" in older files); Cyton's
Sample Index goes from 0 to 255. Its channels have numbers and no places, so ``ChannelPolicy.names`` must name them.
"""

import contextlib
import gzip
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import maximum_filter1d, minimum_filter1d

from cerebro_eeg.data.reading.amplitude import amplitude_faults
from cerebro_eeg.data.reading.edf_samples import UNITS, opened
from cerebro_eeg.data.reading.passing_faults import passing_faults
from cerebro_eeg.data.reading.recording import ChannelPolicy, Event, Fault, Recording, Samples, Segment
from cerebro_eeg.errors import InputError, RecordingError

RATE_TOLERANCE = 0.005  # clocks differ by far less, and a stream that lost more samples than this is not to be trusted
_HALF = 0.5  # samples: as in EDF+, a time that is off by less is no gap


def steps(counter: NDArray[np.float64], cycle: int) -> NDArray[np.int64]:
    """Return by how many samples each sample follows the one before, from a counter 0 ... cycle - 1, 0 ..."""
    if not np.isfinite(counter).all() or (counter != np.round(counter)).any():
        raise RecordingError("counter", "the counter of samples has values that are not whole numbers; export it anew")
    found: NDArray[np.int64] = np.mod(np.diff(counter.astype(np.int64)), cycle)
    if (found == 0).any():  # the sample came twice, or a whole round is missing; these look alike
        raise RecordingError("counter", "the counter of samples stands still; were the same samples written twice?")
    return found


def timeline(
    stamps: NDArray[np.float64] | None, rate: float, count: int, later: NDArray[np.int64] | None = None
) -> tuple[tuple[Segment, ...], tuple[Fault, ...]]:
    """Return the segments of ``count`` samples at ``rate``, and faults.

    Parameters
    ----------
    stamps : seconds per sample, never falling.
    later : from ``steps``: a 1 where a sample follows the one before.
    """
    if count == 0:
        raise RecordingError("empty", "not one sample")
    later = np.ones(count - 1, np.int64) if later is None else later
    missing = (later - 1).astype(np.float64)  # in samples, in front of each sample but the first
    cuts = missing > 0
    faults: tuple[Fault, ...] = ()
    if stamps is not None:
        jumps, jitter = _jumps(_checked(stamps), np.concatenate([[0], np.cumsum(later)]), rate)
        missing += jumps
        cuts |= jumps > 0
        _check_rate(stamps, missing, rate)
        if jitter > 2:
            note = f"time stamps jitter by {1000 * jitter / rate:.0f} ms; gaps shorter than that cannot be seen"
            faults = (Fault("jitter", note),)
    edges = [0, *(np.flatnonzero(cuts) + 1).tolist(), count]
    segments, onset = [], 0.0
    for start, stop in pairwise(edges):
        onset += float(missing[start - 1]) / rate if start else 0.0
        segments.append(Segment(start, stop, onset))
        onset += (stop - start) / rate
    if len(segments) > 1:
        lost = float(missing[cuts].sum()) / rate
        faults = (Fault("lost", f"samples are missing at {len(segments) - 1} places, {lost:.3g} s in all"), *faults)
    return tuple(segments), faults


def _checked(stamps: NDArray[np.float64]) -> NDArray[np.float64]:
    bad = int((~np.isfinite(stamps)).sum())
    if bad:
        raise RecordingError("stamps", f"{bad} of {len(stamps)} time stamps are missing or no numbers; export it anew")
    back = int((np.diff(stamps) < 0).sum())
    if back:
        raise RecordingError(
            "stamps", f"time runs backwards at {back} of {len(stamps)} samples; sort or export the file anew"
        )
    return stamps


def _jumps(stamps: NDArray[np.float64], number: NDArray[np.int64], rate: float) -> tuple[NDArray[np.float64], float]:
    """Return the samples missing in front of each sample but the first, 0 where none is, and the jitter in samples.

    The delay of a stamp behind its sample wanders. At a gap, every delay of the following second is larger than every
    delay of the second before. Packets that arrive late go back to the old delay; lost samples never do.
    """
    delay = (stamps - stamps[0]) * rate - number
    if len(delay) < 2:
        return np.zeros(0), 0.0
    width = max(2, min(round(rate), len(delay)))
    # Windows that end at a sample, and that begin at one: SciPy's are centred, ``origin`` shifts them.
    ends, begins = (width - 1) // 2, -(width // 2)
    before = maximum_filter1d(delay, width, mode="nearest", origin=ends)
    behind = minimum_filter1d(delay, width, mode="nearest", origin=begins)
    sure = behind[1:] - before[:-1]
    jumps = np.zeros(len(sure))
    for place in np.flatnonzero(sure > _HALF):
        # The typical delays on both sides measure the gap better than the two stamps at it.
        typical = np.median(delay[place + 1 : place + 17]) - np.median(delay[max(0, place - 15) : place + 1])
        jumps[place] = max(sure[place], typical)
    spread = before - minimum_filter1d(delay, width, mode="nearest", origin=ends)
    return jumps, float(np.median(spread[width - 1 :]))


def _check_rate(stamps: NDArray[np.float64], missing: NDArray[np.float64], rate: float) -> None:
    """Check that the stamps agree with the nominal rate, once missing samples are accounted for."""
    if len(stamps) < 4 * rate:  # too short to tell
        return
    span = stamps[-1] - stamps[0]
    found = (len(stamps) - 1 + float(missing.sum())) / span if span > 0 else np.inf
    if abs(found / rate - 1) > RATE_TOLERANCE:
        raise RecordingError(
            "rate",
            f"the time stamps say {found:.6g} Hz, the device has {rate:g} Hz; samples were lost and their "
            "stamps evened out, or it is another device",
        )


_LINES = 1 << 15  # parsed at a time
_MOST_TEXT = 1 << 32  # bytes of text: 24 h of 16 channels at 256 Hz have 3 GB; a small .gz may unpack to anything
_MOST_LINE = 1 << 16
_MISSING = frozenset({"", "nan", "na", "n/a", "null", "none"})


@dataclass(frozen=True)
class TableHead:
    """The lines in front of the numbers."""

    comments: tuple[str, ...]
    """Lines that begin with %, without the %."""
    columns: tuple[str, ...]
    separator: str


Columns = Callable[[Sequence[int], Sequence[int]], "CsvTable"]


@dataclass(frozen=True)
class CsvTable:
    """The requested columns, (row, column)."""

    samples: NDArray[np.float32]
    exact: NDArray[np.float64]
    faults: tuple[Fault, ...]


@contextlib.contextmanager
def opened_table(path: Path) -> Iterator[tuple[TableHead, Columns]]:
    """Yield the head of a table, and a function that reads columns: those with samples, and those that need 64 bits."""
    with _opened_lines(path) as lines:
        head = _head(lines)
        yield head, lambda samples, exact: _body(lines, head, list(samples), list(exact))


def first_row(path: Path) -> tuple[TableHead, list[str]]:
    """Read the head of a table and the fields of the row below it; no fields where there is no row."""
    with _opened_lines(path) as lines:
        head = _head(lines)
        row = next((line for line in lines if line.strip()), "")
        return head, _fields(row, head.separator) if row else []


@contextlib.contextmanager
def _opened_lines(path: Path) -> Iterator[Iterator[str]]:
    with opened(path):  # a folder, a pipe or a file that cannot be read ends here
        pass
    try:
        with passing_faults():
            with path.open("rb") as plain:
                packed = plain.read(2) == b"\x1f\x8b"
            with gzip.open(path) if packed else path.open("rb") as file:
                yield _lines(file)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise RecordingError("damaged", "its compressed data is damaged or cut; copy the file anew") from None


def _lines(file: IO[bytes] | gzip.GzipFile) -> Iterator[str]:
    total, number = 0, 0
    while data := file.readline(_MOST_LINE):
        number += 1
        total += len(data)
        if total > _MOST_TEXT:
            raise RecordingError("too_large", f"more than {_MOST_TEXT >> 30} GiB of text; split the file")
        if len(data) >= _MOST_LINE and not data.endswith(b"\n"):
            raise RecordingError("text", f"line {number} has no end within {_MOST_LINE} bytes; this is no table")
        if b"\0" in data:
            raise RecordingError("text", f"line {number} has bytes that no text has; expected a table in UTF-8")
        try:
            yield data.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise RecordingError("text", f"line {number} is no UTF-8; expected a table in UTF-8") from None


def _head(lines: Iterator[str]) -> TableHead:
    comments = []
    for line in lines:
        text = line.strip()
        if text.startswith("%"):
            comments.append(text[1:].strip())
        elif text:
            separator = max(",;\t", key=text.count)
            return TableHead(tuple(comments), tuple(_fields(line, separator)), separator)
    raise RecordingError("empty", "no line that names columns")


def _fields(line: str, separator: str) -> list[str]:
    return [field.strip().strip('"').strip() for field in line.strip("\r\n").split(separator)]


def _body(lines: Iterator[str], head: TableHead, samples: list[int], exact: list[int]) -> CsvTable:
    parts: list[tuple[NDArray[np.float32], NDArray[np.float64]]] = []
    faults: list[Fault] = []
    done, commas = 0, 0
    block = list(islice(lines, _LINES))
    while block:
        following = list(islice(lines, _LINES))
        if not following:
            block, cut = _without_cut_row(block, head)
            faults += [Fault("truncated", "the last row is cut; left out")] if cut else []
        if head.separator != ",":
            commas += sum(line.count(",") for line in block)
            block = [line.replace(",", ".") for line in block]
        if block:
            values = _parsed(block, head, samples + exact, done)
            with np.errstate(over="ignore"):  # a number beyond float32 is no voltage: infinite, and left out later
                parts.append((values[:, : len(samples)].astype(np.float32), values[:, len(samples) :].copy()))
        done += len(block)
        block = following
    if commas:
        faults.append(Fault("decimal_comma", f"{commas} numbers have a comma; read as a decimal point"))
    if not done:
        raise RecordingError("empty", "columns, but not one row of numbers")
    return CsvTable(np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts]), tuple(faults))


def _without_cut_row(block: list[str], head: TableHead) -> tuple[list[str], bool]:
    while block and not block[-1].strip():
        block = block[:-1]
    # A last line without an end may lack fields, or digits: half of a number looks like any other number.
    cut = bool(block) and not block[-1].endswith("\n") and block[-1].count(head.separator) != len(head.columns) - 1
    return (block[:-1] if cut else block), cut


def _parsed(block: list[str], head: TableHead, wanted: Sequence[int], done: int) -> NDArray[np.float64]:
    separators = len(head.columns) - 1
    for number, line in enumerate(block):
        if line.count(head.separator) != separators:
            raise RecordingError(
                "columns",
                f"row {done + number + 1} has {line.count(head.separator) + 1} columns, the first line names "
                f"{separators + 1}; decimal commas need another separator, such as ;",
            )
    try:
        return np.loadtxt(
            block, np.float64, comments=None, delimiter=head.separator, usecols=list(wanted), ndmin=2, quotechar='"'
        )
    except ValueError:
        return _parsed_slowly(block, head, wanted, done)


def _parsed_slowly(block: list[str], head: TableHead, wanted: Sequence[int], done: int) -> NDArray[np.float64]:
    out = np.empty((len(block), len(wanted)))
    for number, line in enumerate(block):
        fields = _fields(line, head.separator)
        for place, column in enumerate(wanted):
            text = fields[column]
            try:
                if "_" in text:
                    raise ValueError
                out[number, place] = np.nan if text.casefold() in _MISSING else float(text)
            except ValueError:
                raise RecordingError(
                    "number", f"row {done + number + 1}, column {column + 1}: not a number; mend or remove the row"
                ) from None
    return out


_MUSE = ("TP9", "AF7", "AF8", "TP10")
_EPOC = ("AF3", "AF4", "F3", "F4", "F7", "F8", "FC5", "FC6", "O1", "O2", "P7", "P8", "T7", "T8")
_EXG = re.compile(r"EXG Channel \d+", re.IGNORECASE)


@dataclass(frozen=True)
class TableLayout:
    """Which columns of a table hold what, by number; -1 where there is none."""

    eeg: tuple[int, ...]
    rate: float
    stamps: int = -1
    counter: int = -1
    cycles: tuple[int, ...] = ()
    """Possible lengths of the counter's cycle; the one that fits is taken."""
    marker: int = -1
    interpolated: int = -1


def open_csv(path: Path, policy: ChannelPolicy, unit: str | None = None) -> Recording:
    """Open the table of a Muse, an Emotiv EPOC or an OpenBCI board. ``unit`` replaces the device's own, microvolts."""
    with opened_table(path) as (head, read):
        device = recognise(head)
        kinds = ["eeg" if column in device.eeg else "another column" for column in range(len(head.columns))]
        match = policy.match(list(head.columns), None, kinds)
        extra = [c for c in (device.stamps, device.counter, device.marker, device.interpolated) if c >= 0]
        table = read(match.index, extra)
    beside = {number: table.exact[:, place] for place, number in enumerate(extra)}
    counter, interpolated = beside.get(device.counter), beside.get(device.interpolated)
    later = None if counter is None else steps(counter, _cycle(counter, device.cycles))
    segments, faults = timeline(beside.get(device.stamps), device.rate, len(table.samples), later)
    faults = (*table.faults, *faults)
    if interpolated is not None and (interpolated > 0).any():
        count = int((interpolated > 0).sum())
        faults += (Fault("interpolated", f"{count} samples were lost and interpolated by the device; kept"),)
    samples = table.samples
    if unit not in (None, "uV"):
        samples = samples * np.float32(UNITS[unit])
        faults += (Fault("unit", f"taken as {unit}, as asked for; the device documents uV"),)
    events = _events(beside.get(device.marker), segments, device.rate)
    recording = Recording(device.rate, match, segments, ArraySamples(samples), events, faults)
    return replace(recording, faults=(*faults, *amplitude_faults(recording)))


def recognise(head: TableHead) -> TableLayout:
    """Find out by its head which device wrote a table."""
    device = _device(head)
    if device is not None:
        return device
    raise RecordingError(
        "columns",
        f"the {len(head.columns)} columns of this table are not those of Muse (timestamps, TP9, AF7, AF8, TP10), "
        "Emotiv EPOC (AF3 ... T8, COUNTER) or OpenBCI (%OpenBCI; Sample Index, EXG Channel 0 ...), nor numbers below a "
        "line of electrode names; write EDF from it",
    )


def _device(head: TableHead) -> TableLayout | None:
    return next((device for what in (_muse, _emotiv, _openbci) if (device := what(head)) is not None), None)


def is_headset(path: Path, *, broken: bool = False) -> bool:
    """Return whether a text table is one that a headset wrote; ``broken``: also one whose head has a fault."""
    try:
        head = first_row(path)[0]
    except RecordingError:
        return False
    try:
        return _device(head) is not None
    except RecordingError:
        return broken


def _muse(head: TableHead) -> TableLayout | None:
    if not {"timestamps", *_MUSE} <= set(head.columns):
        return None
    marker = next((i for i, name in enumerate(head.columns) if re.fullmatch(r"Marker\d*", name)), -1)
    return TableLayout(tuple(_one(head, name) for name in _MUSE), 256.0, stamps=_one(head, "timestamps"), marker=marker)


def _emotiv(head: TableHead) -> TableLayout | None:
    if not {*_EPOC, "COUNTER"} <= set(head.columns):
        return None
    interpolated = _one(head, "INTERPOLATED") if "INTERPOLATED" in head.columns else -1
    return TableLayout(
        tuple(_one(head, name) for name in _EPOC),
        128.0,
        counter=_one(head, "COUNTER"),
        cycles=(129, 128),
        interpolated=interpolated,
    )


def _openbci(head: TableHead) -> TableLayout | None:
    if not any(line.casefold().startswith("openbci") for line in head.comments):
        return None
    eeg = tuple(i for i, name in enumerate(head.columns) if _EXG.fullmatch(name))
    rates = [found[1] for line in head.comments if (found := re.fullmatch(r"Sample Rate = ([\d.]+) ?Hz,*", line))]
    if not eeg or len(rates) != 1 or "Timestamp" not in head.columns or "Sample Index" not in head.columns:
        raise RecordingError(
            "columns",
            "an OpenBCI table without a line that names its columns (Sample Index, EXG Channel 0 ..., Timestamp) or "
            "without one Sample Rate; export it with version 5 of the GUI",
        )
    try:
        rate = float(rates[0])
    except ValueError:
        rate = math.nan
    if not 1 <= rate <= 100_000:
        raise RecordingError("rate", "the Sample Rate of an OpenBCI table must be a number of Hz; mend its head")
    # A Daisy board and Ganglion count otherwise; their gaps show in the time stamps only.
    board = next((line for line in head.comments if line.startswith("Board")), "")
    cyton = "Cyton" in board and "Daisy" not in board
    marker = next((i for i, name in enumerate(head.columns) if name == "Marker Channel"), -1)
    return TableLayout(
        eeg,
        rate,
        stamps=_one(head, "Timestamp"),
        counter=_one(head, "Sample Index") if cyton else -1,
        cycles=(256,),
        marker=marker,
    )


def _one(head: TableHead, name: str) -> int:
    if head.columns.count(name) != 1:
        raise RecordingError("columns", f"the column {name} is there {head.columns.count(name)} times; keep one")
    return head.columns.index(name)


def _cycle(counter: NDArray[np.float64], cycles: Sequence[int]) -> int:
    """Return the cycle that ends with the highest count; the first one where the recording is shorter than a cycle."""
    highest = float(np.nanmax(counter, initial=0.0))
    if highest >= max(cycles) or np.nanmin(counter, initial=0.0) < 0:
        raise RecordingError(
            "counter", f"the counter of samples goes beyond {max(cycles) - 1}; another device, whose rate is not known"
        )
    return next((cycle for cycle in cycles if cycle == highest + 1), cycles[0])


def _events(marker: NDArray[np.float64] | None, segments: Sequence[Segment], rate: float) -> tuple[Event, ...]:
    """Return an event wherever the marker changes to a number other than 0."""
    if marker is None:
        return ()
    value = np.nan_to_num(marker)
    before = np.concatenate([[0.0], value[:-1]])
    starts = np.array([segment.start for segment in segments])
    events = []
    for place in np.flatnonzero((value != 0) & (value != before)):
        segment = segments[int(np.searchsorted(starts, place, side="right")) - 1]
        events.append(Event(segment.onset + float(place - segment.start) / rate, 0.0, f"{value[place]:g}"))
    return tuple(events)


class ArraySamples:
    """The ``read`` function of a Recording whose samples (time, channel) are in memory."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __call__(self, start: int, stop: int) -> Samples:
        """Return a copy of samples ``start`` to ``stop`` (exclusive)."""
        if not 0 <= start <= stop <= len(self._samples):
            raise InputError(f"samples {start} to {stop} were asked for; the recording has 0 to {len(self._samples)}")
        return self._samples[start:stop].copy()
