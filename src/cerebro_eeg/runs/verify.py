"""Verify: checks everything that cerebro-eeg writes against the sums that were written with it.

A store is checked line by line and sample by sample. In the folders of runs, checkpoints and predictions every file is
checked against ``SHA256SUMS``; weights and states also against the sums inside of them, features against their own.
What has no sum is named, with the reason: it counts as not covered, never as damaged. Nothing is written, and nothing
of a file is run.
"""

import csv
import errno
import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cerebro_eeg.errors import CerebroError, ConfigError, InputError, StoreError
from cerebro_eeg.files import SUMS, check_seal, file_sum, parse_json, read_sums
from cerebro_eeg.notebook import Shown, by_column
from cerebro_eeg.progress import counted, in_bytes

if TYPE_CHECKING:
    from cerebro_eeg.data.storing.store import Store

DAMAGED = 9
"""The exit code where anything is damaged."""
_STATE, _LOG, _CARD = "state.safetensors", "metrics.jsonl", "README.md"
_SHOWN = 8
_KINDS = {".safetensors": "checkpoint", ".npz": "features", ".parquet": "features"}
_LOGGERS = ("tensorboard", "wandb")
_INSIDE = re.compile(r"fold-.*|seed-.*|simple|rivals|test-events|task-.*|method-.*|external|[0-9a-f]{8}-.*")
Done = Callable[[int], None]


@dataclass
class Verified:
    """What was found out about one path."""

    path: str
    kind: str
    checked: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    uncovered: list[str] = field(default_factory=list)
    """What could not be checked, and why."""

    def text(self) -> str:
        state = f"DAMAGED ({counted(len(self.damaged), 'fault')})" if self.damaged else "sound"
        lines = [f"{self.path}: {self.kind}, {state}"]
        for title, found in (("checked", self.checked), ("damaged", self.damaged), ("not covered", self.uncovered)):
            more = [f"and {len(found) - _SHOWN:,} more (--json lists all)"] if len(found) > _SHOWN else []
            lines += [f"  {title:11} {line}" for line in (*found[:_SHOWN], *more)]
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class VerifyResult(Shown):
    """What was found out about all paths."""

    things: tuple[Verified, ...]

    @property
    def exit_code(self) -> int:
        return DAMAGED if any(thing.damaged for thing in self.things) else 0

    def to_dict(self) -> dict[str, object]:
        return {"sound": self.exit_code == 0, "things": [asdict(thing) for thing in self.things]}

    def text(self) -> str:
        lines = [thing.text() for thing in self.things]
        if self.exit_code:
            lines.append("restore what is damaged from a copy, or make it anew; docs/integrity.md says how")
        return "\n".join(lines)

    @property
    def trouble(self) -> str | None:
        """A line that says what is damaged; None if nothing is."""
        bad = [f"{thing.path}: {fault}" for thing in self.things for fault in thing.damaged]
        return f"damage was found in {counted(len(bad), 'place')}, first in {bad[0]}" if bad else None

    def _headline(self) -> str:
        return self.trouble or f"{counted(len(self.things), 'path')} sound"

    def _columns(self) -> Mapping[str, Sequence[Any]]:
        """Return one row per finding: what was checked, damaged, or not covered by a sum."""
        return by_column(
            {"path": thing.path, "kind": thing.kind, "finding": word, "what": what}
            for thing in self.things
            for word in ("checked", "damaged", "uncovered")
            for what in getattr(thing, word)
        )


def verify(paths: Sequence[Path], tell: Callable[[int, int], None] = lambda done, total: None) -> VerifyResult:
    """Check paths; ``tell`` is called with the bytes that were checked and all bytes. Damage is no exception."""
    if not paths:
        raise ConfigError("there is nothing to check; give a store, a run, a checkpoint, predictions or features")
    kinds = [(path, _kind(path)) for path in paths]  # a wrong path is said before hours of work
    total, done = sum(map(_size, paths)), 0

    def add(size: int) -> None:
        nonlocal done
        done += size
        tell(min(done, total), total)

    found = []
    for path, kind in kinds:
        thing = Verified(str(path), kind)
        try:
            if kind == "store":
                _verify_store(path, thing, add)
            elif path.is_dir():
                _verify_folder(path, thing, add)
            else:
                _verify_file(path, thing, add)
        except OSError as error:  # a folder, or a file of a store; others are named where they are read
            thing.damaged.append(f"a part of it cannot be read ({error.strerror or type(error).__name__})")
        found.append(thing)
    return VerifyResult(tuple(found))


def _kind(path: Path) -> str:
    """Return what a path is, by the names of files alone: their content may be damaged."""
    if os.path.isdir(path):  # unlike Path.is_dir, never an error
        try:
            names = set(os.listdir(path))
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}); give a path that you may read") from None
        shards = any(re.fullmatch(r".+-[0-9]{4,}\.(jsonl|bin)", name) for name in names)
        known = [
            ("store", "store.json" in names or shards),
            ("run", "run.json" in names),
            ("predictions", "decisions.json" in names),
            ("repaired recordings", "repair.json" in names),
            ("checkpoint", "model.safetensors" in names),
            ("folder", SUMS in names),
        ]
        for kind, fits in known:
            if fits:
                return kind
        raise InputError(f"{path} holds nothing that cerebro-eeg writes; give a store, a run, a checkpoint or features")
    if not os.path.lexists(path):
        raise InputError(f"there is nothing at {path}; check the path")
    if not os.path.isfile(path):
        raise InputError(f"{path} is neither a file nor a folder; give a store, a run, a checkpoint or features")
    if path.suffix.casefold() == ".csv" and _beside(path).is_file():
        return "features"
    if path.suffix.casefold() in _KINDS:
        return "training state" if path.name == _STATE else _KINDS[path.suffix.casefold()]
    if path.name not in _listed(path.parent):
        raise InputError(
            f"{path} has no sum of its own, and no {SUMS} beside it lists it; give the folder that cerebro-eeg wrote"
        )
    return "file"


def _beside(path: Path) -> Path:
    """Return the file that holds the sum of features as .csv."""
    return path.with_name(f"{path.name}.sha256")


def _listed(folder: Path) -> dict[str, str]:
    try:
        return read_sums(folder)
    except (OSError, ValueError):
        return {}


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    if os.path.isfile(path):
        return path.stat().st_size
    files = (os.path.join(at, name) for at, _, names in os.walk(path) for name in names)
    return sum(os.path.getsize(file) for file in files if os.path.isfile(file))


# Stores


def _verify_store(folder: Path, thing: Verified, add: Done) -> None:
    from cerebro_eeg.data.storing.mains import NAME as MAINS
    from cerebro_eeg.data.storing.mains import read_table
    from cerebro_eeg.data.storing.shards import read_shard, shard_names
    from cerebro_eeg.data.storing.store import Store
    from cerebro_eeg.data.storing.store_info import NAME, ChangingStoreError, has_own_form, read_info

    try:
        info = read_info(folder)
        if not has_own_form(folder / NAME):
            thing.damaged.append(f"{NAME} is not as it was written")
        thing.checked.append(f"{NAME}: format {info.format}" + (", its SHA-256" if info.has_sums else ""))
        if not info.has_sums:
            thing.uncovered.append(f"{NAME} has no sum of its own (format {info.format})")
    except ChangingStoreError as error:
        thing.uncovered.append(f"everything: {error}")
        return
    except StoreError as error:
        thing.damaged.append(str(error))
        thing.uncovered.append("the samples: without store.json there is no store to read")
        return
    bad, pending, copies = [], 0, 0
    for name in shard_names(folder):
        try:
            shard = read_shard(folder, name)
            copies += len(shard.entries)
            for end, size in ((".bin", shard.payload_bytes), (".sums", shard.sum_bytes), (".jsonl", shard.line_bytes)):
                path = folder / f"{name}{end}"
                pending += path.stat().st_size - size if path.exists() else 0
        except StoreError as error:
            thing.damaged.append(str(error))
            bad.append(name)
    if bad:
        thing.uncovered.append(
            f"samples of {counted(len(bad), 'shard')}, whose lines are damaged: {', '.join(bad[:5])}"
        )
    if pending:
        thing.uncovered.append(f"{in_bytes(pending)} of recordings that were never finished; prepare makes them anew")
    try:
        store = Store(folder, without=bad)
    except StoreError as error:
        thing.damaged.append(str(error))
        return
    _verify_samples(store, thing, add)
    if copies > len(store.recordings):
        thing.uncovered.append(f"{counted(copies - len(store.recordings), 'second copy')} of recordings, not in use")
    _verify_skips(folder, store, thing)
    try:
        if read_table(folder) is not None:
            if not has_own_form(folder / MAINS):
                thing.damaged.append(f"{MAINS} is not as it was written")
            thing.checked.append(f"{MAINS}: its SHA-256")
    except StoreError as error:
        thing.damaged.append(str(error))
    names = sorted(set(os.listdir(folder)) - {NAME, MAINS, "skipped.csv"})
    ours = re.compile(r".+-[0-9]{4,}\.(bin|sums|jsonl)|.+\.skipped\.csv|.+\.lock")
    _name_others(thing, [name for name in names if not ours.fullmatch(name)])


def _verify_samples(store: "Store", thing: Verified, add: Done) -> None:
    for number in range(len(store.recordings)):
        try:
            thing.damaged.extend(store.faults_of(number, full=True, done=add))
        except StoreError as error:  # a shard that became shorter meanwhile, or cannot be opened
            thing.damaged.append(str(error))
    what = f"{counted(len(store.recordings), 'recording')}: every line and every sample, against its SHA-256"
    thing.checked.append(what + (f" and {counted(store.sums, 'sum')} of blocks" if store.sums else ""))
    if store.without_sums:
        which = f"{counted(store.without_sums, 'recording')} without sums of blocks (format {store.info.format})"
        thing.uncovered.append(f"{which}: reading does not notice damage, this verb does; prepare anew to have them")


def _verify_skips(folder: Path, store: "Store", thing: Verified) -> None:
    from cerebro_eeg.data.storing.skip_log import parse, read_reasons, skipped_text

    logs, sums = sorted(folder.glob("*.skipped.csv")), True
    for path in logs:
        data = path.read_bytes()
        try:
            parse(data, path.name)
        except StoreError as error:
            thing.damaged.append(str(error))
        sums &= data.count(b",#") >= data.count(b"\n")
    if logs:
        thing.checked.append(f"{counted(len(logs), 'log')} of skipped sources" + (", each line" if sums else ""))
    if not sums:
        thing.uncovered.append("logs of skipped sources have lines without a sum (an earlier release)")
    table = folder / "skipped.csv"
    if not table.exists():
        thing.uncovered.append("skipped.csv is not there: prepare has not ended on this store")
        return
    try:
        expected = skipped_text(read_reasons(folder, {record.id for record in store.recordings}))
    except StoreError:
        return  # said above
    found = table.read_bytes().decode("utf-8", "replace")
    if found == expected:
        thing.checked.append("skipped.csv agrees with the logs")
    elif _reasons(found) != _reasons(expected):
        thing.damaged.append("skipped.csv does not agree with the logs; it is for people: prepare writes it anew")
    else:
        thing.uncovered.append("the remedies in skipped.csv, which have no sum; its reasons agree with the logs")


def _reasons(table: str) -> list[list[str]]:
    """Return id, reason and sentence of each line of skipped.csv; releases may word the remedies differently."""
    try:
        return [row[:3] for row in csv.reader(io.StringIO(table), strict=True)]
    except csv.Error:
        return []


# Folders with SHA256SUMS


def _verify_folder(folder: Path, thing: Verified, add: Done, inside: str = "") -> None:
    """Check every file of a folder, and the folders of trainings, the simple model and events in it."""
    sums: dict[str, str] = {}
    names = sorted(path.name for path in folder.iterdir() if not path.is_dir())
    if SUMS in names:
        try:
            sums = read_sums(folder)
        except (OSError, ValueError):
            thing.damaged.append(f"{inside}{SUMS} is damaged, so the files that it lists cannot be checked by it")
    elif names or not inside:  # the folder of external stores holds folders alone
        thing.uncovered.append(
            f"{inside or 'the folder'} has no {SUMS}: an earlier release wrote it, or it is unfinished"
        )
    count = Counter[str]()
    others = []
    for name in sorted({*names, *sums} - {SUMS, ".lock"}):
        where = f"{inside}{name}"
        if name in sums:
            fault = _compare(folder, name, sums[name], add)
            if fault is None:
                count["sum"] += 1
            else:
                thing.damaged.append(f"{where} {fault}")
                continue
        fault, own = _look_inside(folder / name)
        if fault is not None:
            thing.damaged.append(f"{where}: {fault}")
        elif own:
            count["own"] += 1
        if name not in sums and not own:
            others.append(where)
    if count["sum"]:
        thing.checked.append(f"{counted(count['sum'], 'file')} of {inside or 'the folder'}, each against {SUMS}")
    if count["own"]:
        thing.checked.append(f"{counted(count['own'], 'file')} of {inside or 'the folder'} by the sums inside of them")
    _name_others(thing, others)
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        if _INSIDE.fullmatch(path.name):
            _verify_folder(path, thing, add, f"{inside}{path.name}/")
        else:
            why = "written by a logger" if path.name in _LOGGERS else "not written by cerebro-eeg"
            thing.uncovered.append(f"{inside}{path.name}/ ({why})")


def _compare(folder: Path, name: str, expected: str, add: Done) -> str | None:
    """Return what is wrong with a listed file, unless a command has just taken it off the list or replaced it."""
    fault = f"does not match its SHA-256 in {SUMS}"
    for _ in range(2):
        try:
            if not os.path.isfile(folder / name):  # opening a pipe would wait for ever
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            if file_sum(folder / name, add) == expected:
                return None
        except OSError as error:
            fault = f"is missing or cannot be read ({error.strerror})"
        now = _listed(folder).get(name)
        if now is None:
            return None
        if now == expected:
            break
        expected = now
    return fault


def _name_others(thing: Verified, names: Sequence[str]) -> None:
    """List files without a sum, with the reason."""
    for where in names:
        name = where.rpartition("/")[2]
        if name.startswith(".") and name.endswith(".tmp"):
            why = "left by a write that was killed; nothing reads it"
        elif name == _CARD:
            why = "made for people to edit"
        elif name == _LOG:
            why = "the training has not ended; its lines can be read"
        else:
            why = "no sum: an earlier release, a command that was killed, or somebody else wrote it"
        thing.uncovered.append(f"{where} ({why})")


def _verify_file(path: Path, thing: Verified, add: Done) -> None:
    expected = _listed(path.parent).get(path.name)
    if expected is not None:
        if fault := _compare(path.parent, path.name, expected, add):
            thing.damaged.append(f"{path.name} {fault}")
            return
        thing.checked.append(f"the file against {SUMS}")
    fault, own = _look_inside(path)
    if fault is not None:
        thing.damaged.append(fault)
    elif own:
        thing.checked.append("the file by the sums inside of it")
    elif expected is None:
        thing.uncovered.append(
            "the file has no sum of its whole content (an earlier release): only its parts were read"
        )


# Files that have sums inside of them


def _look_inside(path: Path) -> tuple[str | None, bool]:
    """Return what is wrong with the content of a file, and whether sums inside of it cover every byte."""
    if not os.path.isfile(path):  # a link to nowhere, or a pipe
        return None, False
    try:
        if path.name == _STATE:
            return _state_fault(path)
        if path.suffix == ".safetensors":
            return _weights_fault(path)
        if path.suffix.casefold() in (".npz", ".parquet"):
            return _features_fault(path)
        if path.suffix.casefold() == ".csv" and _beside(path).is_file():
            sound = _beside(path).read_text(encoding="utf-8") == f"{file_sum(path)}  {path.name}\n"
            return (None, True) if sound else ("it does not match the SHA-256 in the file beside it", False)
        if path.suffix == ".json":
            parse_json(path.read_bytes())
        elif path.name == _LOG:
            lines = path.read_bytes().split(b"\n")
            if not all(isinstance(parse_json(line), dict) for line in lines[:-1] if line):
                return "a line is not a step", False
    except CerebroError as error:
        return str(error), False
    except OSError as error:
        return f"it cannot be read ({error.strerror or type(error).__name__})", False
    except Exception as error:  # a damaged file may raise anything in the library that reads it
        return f"it cannot be read ({type(error).__name__})", False
    return None, False


def _state_fault(path: Path) -> tuple[str | None, bool]:
    from cerebro_eeg.train import state

    state.read(path)
    names = {"format", "version", "progress", "sha256"}
    if _metadata(path).keys() not in (names, names | {"about", "about_sha256"}):
        return "its header is not as it was written", False
    return None, True


def _weights_fault(path: Path) -> tuple[str | None, bool]:
    from cerebro_eeg.model import checkpoint

    checkpoint.read(path)
    if not (found := _metadata(path)):
        return "its header is not as it was written", False
    return None, "metadata_sha256" in found  # files of earlier releases have none over their version


def _metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of a safetensors file whose header is exactly as it was written; nothing otherwise."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        data = file.read(length)
    header = parse_json(data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    found = header.get("__metadata__", {})
    return dict(found) if text.ljust(length) == data else {}


def _features_fault(path: Path) -> tuple[str | None, bool]:
    from cerebro_eeg.runs.features import SEALS

    kind = path.suffix.casefold()
    sound = check_seal(path, SEALS[kind])
    if sound is not None:
        return (None, True) if sound else ("it does not match the SHA-256 inside of it", False)
    if kind == ".npz":
        import zipfile

        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
            if bad is not None or archive.comment:
                return "it does not match the sums inside of it", False
    else:
        import pyarrow.parquet as pq

        known = {b"ARROW:schema", b"features_shape"}
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if set(file.metadata.metadata or {}) - known:
                return "its metadata are not as they were written", False
            for group in range(file.num_row_groups):
                file.read_row_group(group)
    return None, False
