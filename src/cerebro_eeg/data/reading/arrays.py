"""Reads matrices of numbers as recordings: ``.npy``, MATLAB files, and text tables that no headset wrote.

Such a file does not say its rate, its unit or, mostly, its channels. The user says them (``ArrayFacts``, and ``unit``),
or a JSON file of the same name beside it does: ``{"sfreq": 256, "unit": "uV", "channels": ["Fp1", "Cz"]}``. The first
line of a table and some variables of a MATLAB file count as well. What a file says itself holds; what a user says is
for those that say nothing.

The axis that has as many values as there are names is that of the channels; the other one is time. Nothing is guessed:
where both axes fit, or none, the file is refused. A value that is NaN is a gap, as everywhere.

``.npy`` is read in blocks, never whole and without a memory map, since a file that becomes shorter would end the
process. Objects (pickles), text, and complex numbers are refused. Codes of a refusal: ``rate``, ``unit``, ``names``
where something was not said; ``array`` for a shape or type that is no recording; ``damaged``, ``sidecar``.
"""

import io
import math
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.channels.match import ChannelMatch
from cerebro_eeg.channels.names import clean, parse
from cerebro_eeg.data.reading.amplitude import amplitude_faults
from cerebro_eeg.data.reading.edf_samples import UNITS, Stamp, opened
from cerebro_eeg.data.reading.mat import check_mat5, mat_numbers, mat_shapes
from cerebro_eeg.data.reading.recording import ChannelPolicy, Fault, Recording, Samples, Segment
from cerebro_eeg.data.reading.tables import ArraySamples, TableHead, first_row, is_headset, opened_table, timeline
from cerebro_eeg.errors import ConfigError, InputError, RecordingError, offered
from cerebro_eeg.files import parse_json

ARRAYS = (".npy", ".mat")
TABLES = (".csv", ".csv.gz", ".txt", ".txt.gz")
_BLOCK = 1 << 22  # bytes of the file that are in memory at a time
_HEADER = 1 << 16  # bytes that hold the head of a .npy file
_MOST_JSON = 1 << 20
_LONG = 64  # values of an axis that may be time
_RATES = ("sfreq", "fs", "srate", "samplingrate", "samplingfrequency", "samplefrequency")
_NAMES = ("channels", "chnames", "channelnames", "chanlabels", "channellabels", "labels", "electrodes")
_TIME = re.compile(r"(?:time|times|timestamps?|time_?stamps?|seconds|time ?[(\[](?:s|sec|ms)[)\]])")
_NEAR = 0.05  # of a step: stamps that computers take wander
_MISSING = frozenset({"", "nan", "na", "n/a", "null", "none"})


@dataclass(frozen=True)
class ArrayFacts:
    """What arrays do not say themselves; it holds for all arrays of a folder that do not say it."""

    sfreq: float | None = None
    """Samples per second."""
    channels: tuple[str, ...] = ()
    """The names of the channels, in order."""

    def __post_init__(self) -> None:
        if self.sfreq is not None and not (math.isfinite(self.sfreq) and self.sfreq > 0):
            raise ConfigError(f"sfreq is {self.sfreq:g}; expected samples per second, such as 256")

    def __bool__(self) -> bool:
        return self.sfreq is not None or bool(self.channels)


NO_FACTS = ArrayFacts()


@dataclass(frozen=True)
class _Said:
    """What is known about an array, from itself, from the file beside it, and from the user."""

    sfreq: float | None
    unit: str | None
    names: tuple[str, ...]


def is_array(path: Path) -> bool:
    """Return whether a file is an array by its suffix, whatever is in it."""
    return path.name.casefold().endswith(ARRAYS)


def is_plain(path: Path) -> bool:
    """Return whether a file holds bare numbers: an array, or a text table that no headset wrote."""
    if not path.name.casefold().endswith(TABLES):
        return is_array(path)
    return not is_headset(path, broken=True) and is_matrix(path)


def reads_as_matrix(path: Path, facts: ArrayFacts) -> bool:
    """Return whether a text table is to be read as a matrix: the user says so, or its first line, or its lack of one.

    Numbers below names that are no electrodes may be any table, so they are one only if their rate is known.
    """
    if not is_plain(path):
        return False
    return facts.sfreq is not None or says_rate(path) or is_matrix(path, named=True) or _no_header(first_row(path)[0])


def check_needed(facts: ArrayFacts, paths: Iterable[Path]) -> None:
    """Refuse facts about arrays where there is none, since they would have no effect."""
    if facts and not any(map(is_plain, paths)):
        option = "sfreq" if facts.sfreq is not None else "channels_from"
        raise ConfigError(f"{option} was given, and there is no array of numbers (.npy, .mat, a table); leave it out")


def says_rate(path: Path) -> bool:
    """Return whether an array has a rate of its own, in itself or in the file beside it."""
    try:
        if _beside(path).get("sfreq") is not None:
            return True
        return path.suffix.casefold() == ".mat" and any(_plain(name) in _RATES for name in mat_shapes(path))
    except (RecordingError, OSError):
        return False


def may_be_recording(path: Path) -> bool:
    """Return whether an array looks like a recording: a matrix with a long axis, or a table of electrodes."""
    if not is_array(path):
        return is_matrix(path, named=True)
    try:
        return any(len(shape) == 2 and max(shape) >= _LONG for shape in _shapes(path, numbers=True))
    except (RecordingError, OSError):
        return False


def is_none(path: Path) -> bool:
    """Return whether an array is plainly no recording, such as a list of labels; a damaged file is none such."""
    try:
        return not any(len(shape) > 1 and max(shape) >= _LONG for shape in _shapes(path, numbers=False))
    except (RecordingError, OSError):
        return False


def _shapes(path: Path, *, numbers: bool) -> list[tuple[int, ...]]:
    """Return the shapes of the arrays of a file, from their heads; a list of numbers counts as such."""
    if path.suffix.casefold() == ".mat":
        return [shape if min(shape) > 1 else (max(shape),) for shape in mat_numbers(path).values()]
    with opened(path) as (read, stamp):
        shape, _, dtype, _ = _npy_head(read(0, min(stamp.size, _HEADER)))
    return [shape] if dtype.kind in "iuf" or not numbers else []


def is_matrix(path: Path, *, named: bool = False) -> bool:
    """Return whether a text table has numbers alone below its first line; ``named``: and electrodes in that line."""
    try:
        head, row = first_row(path)
    except (RecordingError, OSError):
        return False
    if any(line.casefold().startswith("openbci") for line in head.comments):
        return False
    if named and not any(parse(name).channel for name in head.columns):
        return False
    return _no_header(head) or _numbers_follow(head, row)


def told(path: Path) -> str:
    """Return what the file beside an array says about its samples, as a text; a store notices when it changes."""
    if not path.name.casefold().endswith((*ARRAYS, *TABLES)):
        return ""
    try:
        said = _beside(path)
    except RecordingError:
        return "unreadable"
    return repr(sorted(said.items())) if said else ""


def open_array(path: Path, policy: ChannelPolicy, unit: str | None = None, facts: ArrayFacts = NO_FACTS) -> Recording:
    """Open a ``.npy`` or ``.mat`` file that holds one matrix."""
    if path.suffix.casefold() == ".mat":
        return _open_mat(path, policy, unit, facts)
    with opened(path) as (read, stamp):
        if not stamp.size:
            raise RecordingError("empty", "the file has no bytes")
        shape, fortran, dtype, offset = _npy_head(read(0, min(stamp.size, _HEADER)))
    _check_type(dtype)
    _check_axes(shape)
    said = _settle(path, unit, facts, _Said(None, None, ()))
    if offset + math.prod(shape) * dtype.itemsize > stamp.size:
        raise RecordingError("damaged", "the array is cut: its head tells of more numbers than follow; copy it anew")
    matrix, time = _orient(shape, said.names)
    match = policy.match(list(said.names))
    blocks = _NpyBlocks(path, stamp, matrix, time, fortran, dtype, offset, match.index)
    return _recording(said, match, blocks, (Segment(0, matrix[time], 0.0),), _layout(matrix, time))


def open_matrix(path: Path, policy: ChannelPolicy, unit: str | None = None, facts: ArrayFacts = NO_FACTS) -> Recording:
    """Open a text table whose columns are channels; without a line of names the shape decides, as for ``.npy``."""
    head, _ = first_row(path)
    if _no_header(head):
        return _open_bare(path, policy, _settle(path, unit, facts, _Said(None, None, ())))
    columns = [head.columns[0].lstrip("# "), *head.columns[1:]]  # NumPy writes a # in front of names
    said = _settle(path, unit, facts, _Said(None, None, tuple(name or "index" for name in columns)))
    kinds = ["eeg" if name else "a column without a name" for name in columns]
    match = policy.match(list(said.names), None, kinds)
    clock = next((place for place, name in enumerate(columns) if _TIME.fullmatch(name.casefold())), -1)
    clock = -1 if clock in match.index else clock
    with opened_table(path) as (_, read):
        table = read(match.index, [clock] if clock >= 0 else [])
    assert said.sfreq is not None
    segments: tuple[Segment, ...] = (Segment(0, len(table.samples), 0.0),)
    faults = table.faults
    if clock >= 0:
        segments, found = timeline(_in_seconds(table.exact[:, 0], said.sfreq), said.sfreq, len(table.samples))
        faults = (*faults, *found)
    layout = _layout((len(table.samples), len(columns)), 0)
    return _recording(said, match, ArraySamples(table.samples), segments, layout, faults)


def _open_bare(path: Path, policy: ChannelPolicy, said: _Said) -> Recording:
    """Open a table of numbers without a line of names."""
    with opened_table(path) as (head, read):
        table = read([], range(len(head.columns)))
    first = np.array([[_number(text, head) for text in head.columns]])
    values = np.concatenate([first, table.exact])
    shape, time = _orient(values.shape, said.names)
    match = policy.match(list(said.names))
    samples = _narrow(values.reshape(shape).T if time else values)[:, list(match.index)]
    segments = (Segment(0, len(samples), 0.0),)
    return _recording(said, match, ArraySamples(samples), segments, _layout(shape, time), table.faults)


def _in_seconds(stamps: NDArray[np.float64], sfreq: float) -> NDArray[np.float64]:
    """Return a column of times in seconds, whatever unit it is in; a rate other than ``sfreq`` is refused."""
    steps = np.diff(stamps)
    step = float(np.median(steps)) if len(steps) else 0.0
    if not step > 0:
        raise RecordingError("stamps", "the column of times does not rise; remove it, or sort or export the file anew")
    for factor in (1.0, 1e-3, 1e-6, 1e-9):
        if abs(step * factor * sfreq - 1) < _NEAR:
            return stamps * factor
    raise RecordingError(
        "rate",
        f"the column of times rises by {step:.6g}, which is {1 / step:.6g} Hz if it is in seconds, and {sfreq:g} Hz "
        "was given; say the real rate, or remove the column",
    )


def _settle(path: Path, unit: str | None, facts: ArrayFacts, own: _Said) -> _Said:
    """Put together what is known of an array; one line names all that is missing."""
    beside = _beside(path)
    found = _Said(
        own.sfreq or beside.get("sfreq") or facts.sfreq,
        own.unit or beside.get("unit") or unit,
        own.names or beside.get("channels") or facts.channels,
    )
    missing = {
        "rate": ("its sampling rate", "sfreq=256", "sfreq") if found.sfreq is None else None,
        "names": ("the names of its channels", "channels_from='names.txt'", "channels_from")
        if not found.names
        else None,
        "unit": ("its unit", "unit='uV'", "unit") if found.unit is None else None,
    }
    lacking = {code: words for code, words in missing.items() if words is not None}
    if lacking:
        what = _and([words[0] for words in lacking.values()])
        ways = [words[1] for words in lacking.values() if offered(words[2])]
        say = f"say {_and(ways)} (with the values that are true), or" if ways else "say it"
        error = RecordingError(
            next(iter(lacking)),
            f"an array of numbers does not tell {what}; {say} in a JSON file beside it (sfreq, unit, channels)",
        )
        error.options = tuple(words[2] for words in lacking.values())
        raise error
    return found


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _beside(path: Path) -> dict[str, Any]:
    """Read the JSON file of the same name: any of sfreq, unit and channels; {} where there is none that has them."""
    name = path.name
    end = next((end for end in sorted((*ARRAYS, *TABLES), key=len, reverse=True) if name.casefold().endswith(end)), "")
    json = path.with_name(f"{name[: len(name) - len(end)]}.json")
    if not end or not json.is_file():
        return {}
    with opened(json) as (read, stamp):
        data = read(0, min(stamp.size, _MOST_JSON))
    try:
        values = parse_json(data)
    except ValueError:
        raise RecordingError("sidecar", "the JSON file beside the array is no JSON; mend or remove it") from None
    if not isinstance(values, dict):
        return {}
    found: dict[str, Any] = {}
    rate = values.get("sfreq", values.get("SamplingFrequency"))
    if rate is not None:
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
            raise RecordingError("sidecar", "sfreq in the JSON file beside the array is no rate; expected Hz, as 256")
        found["sfreq"] = float(rate)
    if (unit := values.get("unit")) is not None:
        if unit not in UNITS:
            raise RecordingError("sidecar", "unit in the JSON file beside the array is none of uV, nV, mV and V")
        found["unit"] = unit
    if (names := values.get("channels")) is not None:
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise RecordingError("sidecar", "channels in the JSON file beside the array is no list of names")
        found["channels"] = tuple(names)
    return found


def _orient(shape: tuple[int, ...], names: Sequence[str]) -> tuple[tuple[int, int], int]:
    """Return the shape as that of a matrix, and which of its axes is time."""
    _check_axes(shape)
    if len(shape) == 1:
        shape = (1, *shape) if len(names) == 1 else (shape[0], 1)
    first, second = shape
    if not first or not second:
        raise RecordingError("empty", f"the array is empty: {first} x {second} values")
    count = len(names)
    if first == second == count:
        raise RecordingError("array", f"both axes have {count} values, as many as there are names; which one is time?")
    if count not in (first, second):
        raise RecordingError(
            "names",
            f"there are {count} names for an array of {first} x {second} values; expected as many names as one of the "
            "axes has values",
        )
    return (first, second), 1 if first == count else 0


def _check_axes(shape: tuple[int, ...]) -> None:
    if not 1 <= len(shape) <= 2:
        raise RecordingError(
            "array",
            f"the array has {len(shape)} axes; expected two, channels and times (of epochs make one file each, or FIF "
            "epochs)",
        )


def _layout(shape: tuple[int, int], time: int) -> str:
    return f"{shape[0]} x {shape[1]}, {'channels x times' if time else 'times x channels'}"


def _recording(
    said: _Said,
    match: ChannelMatch,
    read: "_Columns",
    segments: tuple[Segment, ...],
    layout: str,
    faults: Sequence[Fault] = (),
) -> Recording:
    assert said.sfreq is not None
    assert said.unit is not None
    scaled = MatrixSamples(read, float(UNITS[said.unit]), layout)
    recording = Recording(said.sfreq, match, segments, scaled, faults=tuple(faults))
    return replace(recording, faults=(*recording.faults, *amplitude_faults(recording)))


class MatrixSamples:
    """The ``read`` function of a Recording: the matched columns of a matrix, in microvolts.

    ``layout`` says the shape of the matrix, and which of its axes was taken for time.
    """

    def __init__(self, read: "_Columns", scale: float, layout: str) -> None:
        self._read, self._scale, self.layout = read, np.float32(scale), layout

    def __call__(self, start: int, stop: int) -> Samples:
        """Return samples ``start`` to ``stop`` (exclusive)."""
        with np.errstate(over="ignore"):  # a number beyond float32 is no voltage: infinite, and left out later
            found: Samples = self._read(start, stop) * self._scale
        return found


# .npy


def _npy_head(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, order, type and where the numbers begin. Nothing of the file is ever unpickled."""
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shape, fortran, dtype = reader(file)
    except Exception:  # a damaged head also breaks Python's tokenizer, in many ways
        raise RecordingError("format", "no .npy file of numbers; save the array anew with numpy.save") from None
    if min(shape, default=1) < 0 or math.prod(shape) > 1 << 60:
        raise RecordingError("damaged", "the head of the array tells of a shape that cannot be; save it anew")
    return shape, fortran, dtype, file.tell()


def _check_type(dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "iuf":
        what = {"O": "objects (a pickle)", "c": "complex numbers", "b": "truth values"}.get(dtype.kind, "no numbers")
        raise RecordingError("array", f"the array holds {what}; expected whole or real numbers")


class _NpyBlocks:
    """Reads some columns of the matrix in a ``.npy`` file as float32, a few megabytes at a time."""

    def __init__(
        self,
        path: Path,
        stamp: Stamp,
        shape: tuple[int, int],
        time: int,
        fortran: bool,
        dtype: np.dtype[Any],
        offset: int,
        columns: Sequence[int],
    ) -> None:
        self._path, self._stamp, self._dtype, self._offset = path, stamp, dtype, offset
        self._columns = list(columns)
        self._count, self._channels = shape[time], shape[1 - time]
        # The last axis of a C array and the first of a Fortran array lie side by side.
        self._together = time == (0 if fortran else 1)

    def __call__(self, start: int, stop: int) -> Samples:
        """Return samples ``start`` to ``stop`` (exclusive) as they lie in the file."""
        columns = self._columns
        if not 0 <= start <= stop <= self._count:
            raise InputError(f"samples {start} to {stop} were asked for; the recording has 0 to {self._count}")
        out = np.empty((stop - start, len(columns)), np.float32)
        size = self._dtype.itemsize
        rows = max(1, _BLOCK // (size * (1 if self._together else self._channels)))
        with opened(self._path, self._stamp) as (read, _), np.errstate(over="ignore"):
            for at in range(start, stop, rows):
                to = min(at + rows, stop)
                if self._together:
                    for place, column in enumerate(columns):
                        data = read(self._offset + (column * self._count + at) * size, (to - at) * size)
                        out[at - start : to - start, place] = np.frombuffer(data, self._dtype)
                else:
                    data = read(self._offset + at * self._channels * size, (to - at) * self._channels * size)
                    block = np.frombuffer(data, self._dtype).reshape(to - at, self._channels)
                    out[at - start : to - start] = block[:, columns]
        return out


# .mat


def _open_mat(path: Path, policy: ChannelPolicy, unit: str | None, facts: ArrayFacts) -> Recording:
    """Open a MATLAB file with one matrix; variables such as ``fs`` and ``labels`` beside it count as said by itself."""
    with opened(path) as (_, stamp):
        if not stamp.size:
            raise RecordingError("empty", "the file has no bytes")
    check_mat5(path)
    shapes = mat_shapes(path)
    rates = [name for name in shapes if _plain(name) in _RATES and math.prod(shapes[name]) == 1]
    lists = [name for name in shapes if _plain(name) in _NAMES]
    values = _load(path, [*rates[:1], *lists[:1]])
    own = _Said(_rate_of(values[rates[0]]) if rates else None, None, _names_of(values[lists[0]]) if lists else ())
    said = _settle(path, unit, facts, own)
    others = {name: shape for name, shape in mat_numbers(path).items() if name not in (*rates, *lists)}
    matrices = [name for name, shape in others.items() if len(said.names) in shape and max(shape) > 1]
    matrices = matrices or [name for name, shape in others.items() if min(shape) > 1]
    if len(matrices) != 1:
        raise RecordingError(
            "array",
            f"the MATLAB file has {len(matrices) or 'no'} {'matrices' if matrices else 'matrix'} that may be the "
            "recording; expected one: save it alone",
        )
    matrix = _load(path, matrices)[matrices[0]]
    if not isinstance(matrix, np.ndarray):  # a sparse matrix
        raise RecordingError("array", "the matrix is stored sparsely; save it in full")
    _check_type(matrix.dtype)
    shape, time = _orient(matrix.shape, said.names)
    match = policy.match(list(said.names))
    samples = _narrow(matrix.T if time else matrix)[:, list(match.index)]
    segments = (Segment(0, len(samples), 0.0),)
    return _recording(said, match, ArraySamples(samples), segments, _layout(shape, time))


def _load(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Load some variables of a MATLAB file that was checked."""
    if not names:
        return {}
    from scipy.io import loadmat

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: dict[str, Any] = loadmat(path, variable_names=list(names), appendmat=False)
        return {name: found[name] for name in names}
    except OSError:
        raise
    except Exception as error:  # its text may quote the file
        raise RecordingError("damaged", f"the MATLAB file cannot be read ({type(error).__name__})") from None


def _plain(name: str) -> str:
    return name.casefold().replace("_", "")


def _rate_of(value: Any) -> float | None:
    try:
        rate = float(np.asarray(value).reshape(-1)[0])
    except (TypeError, ValueError, IndexError):
        return None
    return rate if math.isfinite(rate) and rate > 0 else None


def _names_of(value: Any) -> tuple[str, ...]:
    """Return the texts of a cell array or of a matrix of letters; () where it holds anything else."""
    cells = np.asarray(value).reshape(-1).tolist()
    texts = [cell.reshape(-1)[0] if isinstance(cell, np.ndarray) and cell.size == 1 else cell for cell in cells]
    return tuple(clean(text) for text in texts) if texts and all(isinstance(text, str) for text in texts) else ()


# Tables


def _no_header(head: TableHead) -> bool:
    """Return whether the first line of a table has numbers and no names."""
    return any(head.columns) and all(_is_number(text, head) for text in head.columns)


def _numbers_follow(head: TableHead, row: Sequence[str]) -> bool:
    """Return whether the first row below the names has a number, or nothing, in each column."""
    return len(row) == len(head.columns) and any(row) and all(_is_number(text, head) for text in row)


def _is_number(text: str, head: TableHead) -> bool:
    try:
        _number(text, head)
    except ValueError:
        return False
    return "_" not in text


def _number(text: str, head: TableHead) -> float:
    text = text if head.separator == "," else text.replace(",", ".")
    return math.nan if text.casefold() in _MISSING else float(text)


def _narrow(values: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)


_Columns = ArraySamples | _NpyBlocks
