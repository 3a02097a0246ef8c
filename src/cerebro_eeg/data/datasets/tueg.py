"""The recipe ``tueg``: all EEG of the Temple University Hospital, unlabelled, less the subjects that are tested on.

TUEG holds the subjects of TUAB, TUSZ, TUEP and TUSL, too. A model that was pre-trained on a subject of TUAB's test set
is not tested by it, so whom to exclude must be said. What we know of the layout, and from where: docs/corpora/tueg.md.
"""

import functools
import hashlib
from pathlib import Path

from cerebro_eeg.data.datasets.tuh import MAINS, find_items, tuab_subjects
from cerebro_eeg.data.datasets.tuh_files import SUBJECT, TempleFile, find_files
from cerebro_eeg.data.reading.policy import ChannelPolicy
from cerebro_eeg.data.storing.recipe import Recipe
from cerebro_eeg.data.storing.stored import Interval
from cerebro_eeg.errors import ConfigError, InputError

_WAYS = "the folder of TUAB, a file with a subject id a line, or the word none"
_HEADINGS = ("subject", "subject_id", "id", "patient")


def tueg(folder: Path, *, exclude: str | None = None) -> Recipe:
    """All recordings, less the subjects to exclude: a folder with TUAB, a file with an id a line, or the word none."""
    unwanted = _read_excluded(exclude)
    files = find_files(folder)
    left = tuple(file for file in files if file.subject not in unwanted)
    here = {file.subject for file in files} & unwanted
    if unwanted and not here:
        raise InputError(
            f"none of the {len(unwanted):,} subjects to exclude is in the folder; ids are letters since TUEG v2 and "
            "TUAB v3 and were digits before: give the TUAB that belongs to this TUEG"
        )
    said = "nobody is excluded, as asked for"
    if unwanted:
        gone = len(files) - len(left)
        said = f"{len(here):,} of {len(unwanted):,} subjects to exclude are here, {gone:,} recordings left out"
    return Recipe(
        "tueg",
        f"EEG of the Temple University Hospital; {said}",
        functools.partial(find_items, left, _no_labels),
        policy=ChannelPolicy(unknown="drop"),
        mains=MAINS,
        own_ids=True,
        options={"exclude": hashlib.sha256("\n".join(sorted(unwanted)).encode()).hexdigest() if unwanted else "none"},
    )


def _no_labels(file: TempleFile, subject: str) -> dict[str, tuple[Interval, ...]]:
    return {}


def _read_excluded(exclude: str | None) -> frozenset[str]:
    if exclude is None:
        raise ConfigError(f"TUEG holds the subjects of TUAB, so whom to exclude must be said; give exclude as {_WAYS}")
    if exclude == "none":
        return frozenset()
    return tuab_subjects(Path(exclude)) if Path(exclude).is_dir() else _read_subjects(Path(exclude))


def _read_subjects(path: Path) -> frozenset[str]:
    """The first column of a text file; its first line may name the columns."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"what to exclude is neither a folder nor a file that can be read ({type(error).__name__}); give {_WAYS}"
        ) from error
    ids = [line.split(",")[0].strip().strip('"') for line in lines]
    if ids and ids[0].lower() in _HEADINGS:
        ids[0] = ""
    for number, id in enumerate(ids, 1):
        if id and not SUBJECT.fullmatch(id):
            raise InputError(f"line {number} of the file to exclude is no subject id; expected one, such as aaaaaaaa")
    found = frozenset(filter(None, ids))
    if not found:
        raise InputError("the file to exclude has no subject id; expected one a line, such as aaaaaaaa")
    return found
