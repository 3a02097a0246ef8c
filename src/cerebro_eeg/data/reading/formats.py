"""Opens any EEG file, or an object of MNE, as a Recording; the suffix chooses the reader.

``FORMATS`` lists what is read, how, how much memory that takes and on which files it was tested. A format without a
test on a real file says so. Codes of a refusal, beside those of ``edf``: ``suffix`` unknown; ``mne`` MNE cannot read
the file; ``missing_package``; ``columns`` an unknown table; ``stamps``, ``counter``, ``rate`` its time is broken;
``number``, ``text``, ``too_large``; ``calibration`` a GDF channel without a range; ``streams`` of XDF.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cerebro_eeg.data.reading.arrays import (
    ARRAYS,
    NO_FACTS,
    TABLES,
    ArrayFacts,
    open_array,
    open_matrix,
    reads_as_matrix,
)
from cerebro_eeg.data.reading.edf import open_edf
from cerebro_eeg.data.reading.edf_samples import UNITS, opened
from cerebro_eeg.data.reading.header_checks import check_brainvision, check_fif, read_gdf_channels
from cerebro_eeg.data.reading.mat import check_mat5
from cerebro_eeg.data.reading.mne_reader import from_epochs, from_raw
from cerebro_eeg.data.reading.mne_warnings import quietly
from cerebro_eeg.data.reading.passing_faults import passing_faults
from cerebro_eeg.data.reading.recording import ChannelPolicy, Fault, Recording
from cerebro_eeg.data.reading.tables import open_csv
from cerebro_eeg.data.reading.xdf_reader import open_xdf
from cerebro_eeg.errors import ConfigError, InputError, PassingFault, RecordingError, import_trouble

if TYPE_CHECKING:
    import mne

_STRICT = ChannelPolicy()


@dataclass(frozen=True)
class Format:
    """A row of the table of formats."""

    name: str
    suffixes: tuple[str, ...]
    reader: str
    tested: str
    """ "real": on a file of a device or a public corpus; "written": on files that our tests write; "untested"."""
    memory: str
    """How the file is read. "blocks": only the requested samples; "whole": everything on opening.

    Measured: an hour of 32 channels at 256 Hz (112 MB as float32) takes 40 MB in blocks from FIF, BrainVision or .fdt,
    and 380 MB from a single .set file.
    """


FORMATS = (
    Format("EDF, EDF+", (".edf",), "ours", "real", "blocks"),
    Format("BDF, BDF+", (".bdf",), "ours", "written", "blocks"),
    Format("FIF raw", (".fif", ".fif.gz"), "MNE", "real", "blocks"),
    Format("FIF epochs", (".fif",), "MNE", "written", "blocks"),
    Format("BrainVision", (".vhdr",), "MNE", "written", "blocks"),
    Format("EEGLAB, samples in .fdt", (".set",), "MNE", "written", "blocks"),
    Format("EEGLAB, all in one file, or epochs", (".set",), "MNE", "written", "whole"),
    Format("GDF", (".gdf",), "MNE, with units, ranges and rates read by us", "written", "blocks"),
    Format("Persyst", (".lay",), "MNE", "written", "blocks"),
    Format("Neuroscan CNT", (".cnt",), "MNE", "untested", "blocks"),
    Format("EGI MFF", (".mff",), "MNE", "untested", "blocks"),
    Format("Nihon Kohden", (".eeg",), "MNE", "untested", "blocks"),
    Format("XDF", (".xdf",), "pyxdf", "untested", "whole"),
    Format("Muse (muse-lsl)", (".csv", ".csv.gz"), "ours", "real", "whole"),
    Format("Emotiv EPOC (SDK)", (".csv", ".csv.gz"), "ours", "real", "whole"),
    Format("OpenBCI (GUI 5)", (".txt", ".csv", ".txt.gz"), "ours", "written", "whole"),
    Format("NumPy array", (".npy",), "ours", "written", "blocks"),
    Format("MATLAB matrix (-v7)", (".mat",), "SciPy, after a check of ours", "written", "whole"),
    Format("table of numbers", TABLES, "ours", "written", "whole"),
)


def open_recording(
    source: "Path | mne.io.BaseRaw | mne.BaseEpochs",
    policy: ChannelPolicy = _STRICT,
    *,
    unit: str | None = None,
    arrays: ArrayFacts = NO_FACTS,
) -> Recording:
    """Open a file, or wrap an object of MNE; reads the head now, and samples when they are asked for.

    Parameters
    ----------
    source : a file (a folder for EGI MFF), or an MNE ``Raw`` or ``Epochs`` object, not changed afterwards.
    policy : what becomes of labels that are unknown, duplicate or too many; which channels to keep and their names.
    unit : "uV", "nV", "mV" or "V", for EEG channels whose own unit is blank or unknown; without it they are refused.
        Tables of headsets have no unit of their own: this replaces the microvolts that their makers document.
    arrays : rate and channel names, for arrays of numbers that say none (``arrays.py``); other files have their own.
    """
    if unit is not None and unit not in UNITS:
        raise ConfigError(f"unit={unit!r} is not a unit of voltage; use one of 'uV', 'nV', 'mV', 'V'")
    if isinstance(source, str | Path):
        path = Path(source)
        suffix = _suffix(path)
        reader = _READERS[suffix]
        with passing_faults():
            if suffix in ARRAYS:
                return open_array(path, _strict_twins(policy), unit, arrays)
            if suffix in TABLES and reads_as_matrix(path, arrays):
                return open_matrix(path, _strict_twins(policy), unit, arrays)
            return reader(path, policy if reader is _open_edf else _strict_twins(policy), unit)
    policy = _strict_twins(policy)
    if hasattr(source, "annotations") and hasattr(source, "first_samp"):
        return from_raw(source, policy, unit)
    if hasattr(source, "event_id") and hasattr(source, "drop_log"):
        return from_epochs(source, policy, unit)
    raise InputError(
        f"a recording is a file, or an MNE Raw or Epochs object; got {type(source).__name__}. For windows in an array "
        "use the embed method of a Cerebro; for a long array save it as .npy and say its rate"
    )


def _strict_twins(policy: ChannelPolicy) -> ChannelPolicy:
    """Refuse channels of one name where no reader compares their samples."""
    return replace(policy, duplicates="error") if policy.duplicates == "equal" else policy


def reader_code(error: Exception) -> str:
    """Return the code of a refusal for an error that a reader did not foresee, such as ``reader_keyerror``."""
    return "reader_" + "".join(c if c.isalnum() else "_" for c in type(error).__name__.lower())


def short_name(path: Path) -> str:
    """Return the format of a file in a word or two, by its suffix; "" for a suffix of nobody."""
    try:
        suffix = _suffix(path)
    except RecordingError:
        return ""
    return {".csv": "table", ".csv.gz": "table", ".txt": "table", ".txt.gz": "table"}.get(
        suffix, next(one.name for one in FORMATS if suffix in one.suffixes).replace(",", " ").split()[0]
    )


def suffixes() -> tuple[str, ...]:
    """Return all suffixes that ``open_recording`` knows, in lower case."""
    return tuple(_READERS)


def _suffix(path: Path) -> str:
    """Return the longest known suffix; the message does not repeat an unknown one, which is part of a file name."""
    name = path.name.casefold()
    found = max((s for s in _READERS if name.endswith(s)), key=len, default=None)
    if found is None:
        raise RecordingError(
            "suffix", f"the suffix of this file is none we read; expected one of {', '.join(_READERS)}"
        )
    return found


def _call_mne(name: str, path: Path) -> tuple[Any, list[Fault]]:
    """Call a reader of MNE on a file; return its result and its warnings, which need the level "warning"."""
    try:
        import mne
    except ImportError as error:
        raise RecordingError("missing_package", f"this format cannot be read: {import_trouble(error, 'mne')}") from None
    reader = mne.read_epochs if name == "read_epochs" else getattr(mne.io, name)
    with quietly() as faults:
        if name == "read_epochs_eeglab":
            found = reader(path, verbose="warning")
        else:
            found = reader(path, preload=False, verbose="warning")
    return found, faults


def _not_empty(path: Path) -> bytes:
    """Return the first bytes of a file, which must exist and not be empty."""
    with opened(path) as (read, stamp):
        if not stamp.size:
            raise RecordingError("empty", "the file has no bytes")
        return read(0, min(stamp.size, 32))


def _through_mne(name: str) -> "FormatReader":
    def open_it(path: Path, policy: ChannelPolicy, unit: str | None) -> Recording:
        _not_empty(path)
        raw, faults = _call_mne(name, path)
        return from_raw(raw, policy, unit, faults=faults)

    return open_it


def _open_edf(path: Path, policy: ChannelPolicy, unit: str | None) -> Recording:
    return open_edf(path, policy, unit=unit)


def _open_fif(path: Path, policy: ChannelPolicy, unit: str | None) -> Recording:
    _not_empty(path)
    check_fif(path)
    try:
        raw, faults = _call_mne("read_raw_fif", path)
    except PassingFault:
        raise
    except RecordingError as no_raw:
        try:
            epochs, faults = _call_mne("read_epochs", path)
        except PassingFault:
            raise
        except RecordingError:
            raise no_raw from None
        return from_epochs(epochs, policy, unit, faults)
    return from_raw(raw, policy, unit, faults=faults)


def _open_eeglab(path: Path, policy: ChannelPolicy, unit: str | None) -> Recording:
    _not_empty(path)
    check_mat5(path)
    try:
        raw, faults = _call_mne("read_raw_eeglab", path)
    except PassingFault:
        raise
    except RecordingError as no_raw:
        try:
            epochs, faults = _call_mne("read_epochs_eeglab", path)
        except PassingFault:
            raise
        except RecordingError:
            raise no_raw from None
        return from_epochs(epochs, policy, unit, faults)
    return from_raw(raw, policy, unit, faults=faults)


def _open_brainvision(path: Path, policy: ChannelPolicy, unit: str | None) -> Recording:
    _not_empty(path)
    cut = check_brainvision(path)
    raw, faults = _call_mne("read_raw_brainvision", path)
    return from_raw(raw, policy, unit, faults=(*cut, *faults))


def _open_gdf(path: Path, policy: ChannelPolicy, unit: str | None) -> Recording:
    channels = read_gdf_channels(path)
    raw, faults = _call_mne("read_raw_gdf", path)
    if len(raw.ch_names) != len(channels.scales):
        raise RecordingError("header", "MNE finds another number of channels than the header has; export it anew")
    recording = from_raw(raw, policy, unit, scales=channels.scales, faults=faults)
    rows = [recording.match.rows[index] for index in recording.match.index]
    broken = [row.label for row in rows if not channels.sound[row.index]]
    if broken:
        named = ", ".join(map(repr, broken))
        raise RecordingError("calibration", f"minimum and maximum of {named} are equal or broken; export it anew")
    if any(channels.samples[row.index] != max(channels.samples) for row in rows):
        raise RecordingError(
            "mixed_rates", "EEG channels are slower than others and MNE would upsample them; export it anew"
        )
    return recording


def _open_persyst(path: Path, policy: ChannelPolicy, unit: str | None) -> Recording:
    _not_empty(path)
    raw, faults = _call_mne("read_raw_persyst", path)
    return from_raw(raw, policy, unit, joins=_persyst_joins(path, float(raw.info["sfreq"])), faults=faults)


def _persyst_joins(path: Path, sfreq: float) -> list[int]:
    """Return the samples where time jumps, from lines "sample=second of the day" in [SampleTimes]; MNE ignores them."""
    joins: list[int] = []
    inside, before = False, None
    for line in path.read_text("latin-1").splitlines():
        text = line.strip()
        if text.startswith("["):
            inside = text.casefold() == "[sampletimes]"
        elif inside and "=" in text:
            try:
                sample, second = int(text.split("=")[0]), float(text.split("=")[1])
            except ValueError:
                raise RecordingError(
                    "header", "a line of [SampleTimes] is not sample=time; mend the .lay file"
                ) from None
            if before is not None and abs(second - before[1] - (sample - before[0]) / sfreq) * sfreq > 0.5:
                joins.append(sample)
            before = (sample, second)
    return joins


def _open_nihon(path: Path, policy: ChannelPolicy, unit: str | None) -> Recording:
    if not _not_empty(path).startswith((b"EEG-", b"QI-", b"DAE-")):
        raise RecordingError("format", "no Nihon Kohden file; of a BrainVision recording give the .vhdr instead")
    return _through_mne("read_raw_nihon")(path, policy, unit)


def _open_cnt(path: Path, policy: ChannelPolicy, unit: str | None) -> Recording:
    if not _not_empty(path).startswith(b"Version 3"):
        raise RecordingError("format", "no CNT file of Neuroscan (ANT Neuro's are another format); write EDF from it")
    return _through_mne("read_raw_cnt")(path, policy, unit)


def _open_mff(path: Path, policy: ChannelPolicy, unit: str | None) -> Recording:
    if not path.is_dir():
        raise RecordingError("format", "EGI MFF is a folder; this is none")
    raw, faults = _call_mne("read_raw_egi", path)
    return from_raw(raw, policy, unit, faults=faults)


FormatReader = Callable[[Path, ChannelPolicy, str | None], Recording]
_READERS: dict[str, FormatReader] = {
    ".edf": _open_edf,
    ".bdf": _open_edf,
    ".fif": _open_fif,
    ".fif.gz": _open_fif,
    ".vhdr": _open_brainvision,
    ".set": _open_eeglab,
    ".gdf": _open_gdf,
    ".lay": _open_persyst,
    ".cnt": _open_cnt,
    ".mff": _open_mff,
    ".eeg": _open_nihon,
    ".xdf": open_xdf,
    ".csv": open_csv,
    ".csv.gz": open_csv,
    ".txt": open_csv,
    ".txt.gz": open_csv,
    ".npy": open_array,
    ".mat": open_array,
}
