"""Data sets in memory as a folder that ``prepare folder`` reads: those of braindecode, of EEGDash and of the Hub.

``to_folder`` takes a ``BaseConcatDataset`` of braindecode (1.8), whose parts hold an MNE Raw (``RawDataset``), a Raw
with a table of windows (``EEGWindowsDataset``) or MNE Epochs (``WindowsDataset``). It asks for their attributes alone
and imports MNE, not braindecode. It writes a FIF file for each part, and a table of labels, subjects and splits.

MNE keeps volts, and pipelines of braindecode often multiply them by a million and leave the unit. Signals beyond any
EEG are therefore refused until their unit is said.
"""

import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cerebro_eeg.data.storing.records import is_id
from cerebro_eeg.errors import ConfigError, InputError, import_trouble
from cerebro_eeg.files import replacing
from cerebro_eeg.schema import did_you_mean
from cerebro_eeg.terminal import CsvWriter, one_line

_VOLTS = {"V": 1.0, "mV": 1e-3, "uV": 1e-6}
_ABSURD = 0.1  # volts: the spread of no EEG, but of one whose numbers are microvolts
_LOOK = 2560  # samples that are looked at for that

Row = tuple[str, str, str, str, str, str]


def to_folder(
    dataset: Any,
    folder: Path | str,
    *,
    label: str | None = None,
    subject: str | None = "subject",
    split: str | None = None,
    task: str = "target",
    unit: Literal["V", "mV", "uV"] | None = None,
) -> Path:
    """Write a data set into a new folder, and return the table of labels in it, for ``prepare folder --labels``.

    Parameters
    ----------
    dataset : a ``BaseConcatDataset`` of braindecode, or anything with such ``datasets``.
    folder : the folder to make. It is made whole or not at all.
    label : the column of ``description`` with the label of a part; None takes the targets of the windows or, for parts
        without windows, their ``target_name``. Numbers that are not whole are targets of a regression.
    subject : the column of ``description`` with the subject; None where nobody is known.
    split : the column of ``description`` with the split: train, val or test.
    task : the name of the task, and of the table.
    unit : the unit of the numbers; None for MNE's volts.
    """
    folder = Path(folder)
    if not is_id(task):
        raise ConfigError(f"task={task!r} cannot name a table; use letters, digits and _")
    if unit is not None and unit not in _VOLTS:
        raise ConfigError(f"unit={unit!r} is not a unit of voltage here; use one of 'V', 'mV', 'uV'")
    parts = list(getattr(dataset, "datasets", ()))
    if not parts:
        raise InputError("the data set has no parts; expected a BaseConcatDataset of braindecode")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError("the folder to write to is not empty; name a new one")
    for name in (label, subject, split):
        _check_column(parts, name, required=name != "subject" or subject != "subject")
    rows: list[Row] = []
    draft = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        for number, part in enumerate(parts):
            name, found = _write(part, draft, number, unit, label)
            who, where = _described(part, subject), _described(part, split)
            rows += [(name, who, where, *row) for row in found] or [(name, who, where, "", "", "")]
        kind = _kind([row[3] for row in rows if row[3]])
        with replacing(draft / f"{task}.csv") as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            table = CsvWriter(file)
            table.writerow(("file", "subject", "split", kind, "start", "stop"))
            table.writerows(rows)
        os.replace(draft, folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return folder / f"{task}.csv"


def _write(
    part: Any, folder: Path, number: int, unit: str | None, label: str | None
) -> tuple[str, Sequence[tuple[str, str, str]]]:
    """Write a part, and return the name of its file with the rows of its labels: label, start and stop."""
    try:
        import mne
    except ImportError as error:
        raise ConfigError(f"FIF files cannot be written: {import_trouble(error, 'mne')}") from None
    own = None if label is None else _described(part, label)
    windows, raw = getattr(part, "windows", None), getattr(part, "raw", None)
    if windows is not None:
        name, signal = f"{number:05d}-epo.fif", windows.copy().load_data()
        _check_unit(np.asarray(signal.get_data(copy=False)[:1]), unit)
        span = len(signal.times) / float(signal.info["sfreq"])
        targets = [own] * len(signal) if own is not None else _targets(part, len(signal))
        rows = [(target, repr(i * span), repr((i + 1) * span)) for i, target in enumerate(targets) if target]
    elif raw is not None:
        name, signal = f"{number:05d}-raw.fif", raw.copy().load_data()
        _check_unit(np.asarray(signal.get_data(stop=_LOOK)), unit)
        rows = list(_raw_rows(part, float(signal.info["sfreq"]), own))
    else:
        raise InputError(f"part {number} of the data set has neither raw nor windows; expected those of braindecode")
    factor = _VOLTS[unit or "V"]
    if factor != 1.0:
        signal.apply_function(lambda values: values * factor, picks="all", channel_wise=False, verbose="error")
    with mne.utils.use_log_level("error"):
        signal.save(folder / name, overwrite=True)
    return name, rows


def _raw_rows(part: Any, sfreq: float, own: str | None) -> Iterator[tuple[str, str, str]]:
    """Yield the labels of a continuous recording: one for all of it, or those of its windows, each once."""
    table = getattr(part, "metadata", None)
    if own is None and table is None:
        names = getattr(part, "target_name", None)
        if names is not None and not isinstance(names, str):
            raise InputError(f"the parts have {len(names)} targets; name one of them as label")
        own = None if names is None else _described(part, names)
    if table is None or own is not None:
        if own:
            yield own, "", ""
        return
    windows = zip(table["i_start_in_trial"], table["i_stop_in_trial"], _targets(part, len(table)), strict=True)
    seen = set()
    for start, stop, target in windows:
        row = target, repr(int(start) / sfreq), repr(int(stop) / sfreq)
        if target and row not in seen:
            seen.add(row)
            yield row


def _targets(part: Any, count: int) -> list[str]:
    """Return the target of each window as a text."""
    table = part.metadata
    if table is None or "target" not in table:
        return [""] * count
    return [_text(value) for value in table["target"]]


def _described(part: Any, column: str | None) -> str:
    return "" if column is None else _text(_description(part).get(column))


def _description(part: Any) -> dict[str, Any]:
    found = getattr(part, "description", None)
    return {} if found is None else {str(name): value for name, value in found.items()}


def _text(value: Any) -> str:
    """Return a label, subject or split as a text; blank for a missing one."""
    if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str):
        raise InputError("a window has several targets; name one column of the description as label")
    if value is None or (isinstance(value, float | np.floating) and math.isnan(value)):
        return ""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _kind(labels: Sequence[str]) -> str:
    """Return the name of the column: target where the labels are numbers and not all of them whole."""
    try:
        return "label" if all(float(text).is_integer() for text in labels) else "target"
    except ValueError:
        return "label"


def _check_column(parts: Sequence[Any], column: str | None, *, required: bool) -> None:
    known: Mapping[str, None] = dict.fromkeys(name for part in parts for name in _description(part))
    if column is not None and required and column not in known:
        listed = ", ".join(map(one_line, known)) or "none"
        raise ConfigError(
            f"no part has {column!r} in its description{did_you_mean(column, known)}; its columns are {listed}"
        )


def _check_unit(values: np.ndarray, unit: str | None) -> None:
    """Refuse numbers that cannot be volts, as they are after a multiplication by a million."""
    spread = float(np.median(np.std(values, axis=-1))) if values.size else 0.0
    if unit is None and spread > _ABSURD:
        raise InputError(
            f"the signals have a spread of {spread:.3g} V, which no EEG has; they are microvolts if somebody "
            "multiplied them by a million: say unit='uV', or unit='V' if they are right"
        )
