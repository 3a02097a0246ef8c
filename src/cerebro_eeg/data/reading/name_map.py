"""Reads the two files about channel names that a user may bring: a map of names, and a list of names.

The map (``--rename map.csv``) has two columns: the name in the file, and the electrode. An empty second column leaves
the channel out. The list (``--channels-from names.txt``) has the names of an array's channels, one a line, in order.

Messages give the number of a row and never quote a table, because a wrong file may say who was recorded.
"""

import csv
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from cerebro_eeg.channels.names import clean, parse
from cerebro_eeg.channels.report import listed, suggest
from cerebro_eeg.data.reading.recording import ChannelPolicy, Recording
from cerebro_eeg.errors import ChannelError, InputError, PassingFault

_MAP = "the map of names"
_LIST = "the list of channel names"
_HEADER = ("electrode", "name", "channel", "label", "new", "to", "standard")  # of a second column, not an electrode
_MOST = 1 << 20  # bytes: no montage is longer
_SHOWN = 8  # names that a line lists


def read_names(path: Path) -> dict[str, str]:
    """Read a map of names: the electrode by the name in the file, "" for a channel that is left out.

    A first line such as ``name,electrode`` is a header. Commas, semicolons or tabs separate.
    """
    lines = [line for line in _read(path, _MAP).splitlines() if line.strip()]
    if not lines:
        raise InputError(f"{_MAP} is empty; expected lines such as EEG001,Fp1")
    separator = max(",;\t", key=lines[0].count)
    try:
        rows = [[field.strip() for field in row] for row in csv.reader(lines, delimiter=separator)]
    except csv.Error:
        raise InputError(f"{_MAP} cannot be read as a table; expected lines such as EEG001,Fp1") from None
    first = rows[0][1].casefold() if len(rows[0]) == 2 else ""
    header = bool(first) and first.replace("_", " ").split()[-1] in _HEADER
    found: dict[str, str] = {}
    for number, row in enumerate(rows[1:] if header else rows, 2 if header else 1):
        where = f"line {number} of {_MAP}"
        if len(row) != 2:
            raise InputError(
                f"{where} has {len(row)} {'value' if len(row) == 1 else 'values'}; expected 2: the name in the file "
                "and the electrode, such as EEG001,Fp1 (nothing behind the comma leaves the channel out)"
            )
        label, name = clean(row[0]), clean(row[1])
        if not label:
            raise InputError(f"{where} has no name in its first column; expected a name as the file has it")
        if label in found:
            raise InputError(f"{where} has a name that an earlier line has; expected each name once")
        if name and parse(name, bipolar_ears=True).channel is None:
            near = suggest([name], _known())
            meant = f" ({near[name]})" if name in near else ""
            raise InputError(
                f"the second column of {where} is no electrode{meant}; expected a name of the 10-05 system such as "
                "Fp1, a pair such as Fp1-F7, or nothing to leave the channel out"
            )
        found[label] = name
    return found


def read_channel_list(path: Path) -> tuple[str, ...]:
    """Read a list of channel names, one a line; a name may stand twice, as in files that have two equal labels."""
    names = tuple(clean(line) for line in _read(path, _LIST).splitlines() if line.strip())
    if not names:
        raise InputError(f"{_LIST} is empty; expected one name a line, in the order of the channels")
    if len(names) == 1 and "," in names[0]:
        names = tuple(clean(name) for name in names[0].split(",") if name.strip())
    long = next((number for number, name in enumerate(names, 1) if len(name) > 80), None)
    if long is not None:
        raise InputError(f"line {long} of {_LIST} has more than 80 letters; expected one name a line")
    return names


def labels_of(openers: Iterable[Callable[[ChannelPolicy], Recording]], policy: ChannelPolicy) -> set[str]:
    """Return the labels of all files that can be opened, or are refused for their labels; reads their heads."""
    found: set[str] = set()
    for opening in openers:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found.update(row.label for row in opening(policy).match.rows)
            except ChannelError as error:
                found.update(error.labels)
            except Exception:  # it is refused later, with its reason
                continue
    return found


def unmet(names: Mapping[str, str], labels: Collection[str]) -> list[str]:
    """Return the names of a map that are not among the labels of any file, in the order of the map."""
    there = set(map(clean, labels))
    return [name for name in names if name not in there]


def unmet_words(absent: Iterable[str], labels: Collection[str]) -> str:
    """Return a line on names of a map that no file has, with what may be meant."""
    lost = list(absent)
    more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
    what = "1 name of the map is" if len(lost) == 1 else f"{len(lost)} names of the map are"
    return f"{what} in no file: {listed(lost[:_SHOWN], suggest(lost[:_SHOWN], sorted(set(labels))))}{more}"


def _known() -> tuple[str, ...]:
    from cerebro_eeg.channels.electrodes import VOCABULARY

    return tuple(VOCABULARY)


def _read(path: Path, what: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST + 1)
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{what} is not UTF-8; save it as text in UTF-8 (an Excel workbook is none)") from None
    except OSError as error:
        raise PassingFault(
            f"{what} cannot be read: {error.strerror or type(error).__name__}; name a file that is there and may be "
            "read"
        ) from None
    if len(data) > _MOST or "\0" in text:
        raise InputError(f"{what} is no list of names: it is too long, or no text; name the right file")
    return text
