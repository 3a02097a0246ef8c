"""store.json: what a store was made of and how. Every later addition must ask for the same.

It is written once, and replaced where the options of a store are changed (``change.py``).

Its field ``sha256`` is the hash of all other fields, as compact JSON with sorted keys.

Settings are JSON values of the preparation: signal, reference, policies, version of the recipe. ``key_check`` tells
whether two stores have ids made with the same private key, and nothing about the key.
"""

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from reprlib import repr as shown
from typing import Any

from cerebro_eeg.data.storing.shards import disk_errors
from cerebro_eeg.errors import ConfigError, StoreError
from cerebro_eeg.files import parse_json, write_once
from cerebro_eeg.terminal import has_controls

FORMAT = 3
"""2 since lines may have the fingerprint of a source, 3 since blocks of samples and store.json have sums.

Stores of formats 1 and 2 are read and continued without them.
"""
_READ = (1, 2, FORMAT)
_SUMS_SINCE = 3
_CHANGING = "changing"  # in the place of the format, so that earlier releases refuse the store, too
NAME = "store.json"


@dataclass(frozen=True)
class StoreInfo:
    """The contents of store.json."""

    dataset: str
    settings: dict[str, Any]
    key_check: str | None
    """None where ids are the corpus's own."""
    format: int = FORMAT
    transforms: str | None = None
    """Library that computed the Fourier transforms of the filters ("SciPy 1.17"); other versions round differently."""

    @property
    def has_sums(self) -> bool:
        """Whether blocks of samples have sums, so that reading notices damage."""
        return self.format >= _SUMS_SINCE


def create_store(folder: Path, dataset: str, settings: Mapping[str, Any], key_check: str | None = None) -> StoreInfo:
    """Make a store, or find one with the same settings; a ConfigError names the settings that differ.

    Any number of processes may do so at once; one of them makes it.
    """
    try:
        plain = json.loads(json.dumps(settings, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the settings of a store must be JSON values ({error})") from None
    if (name := _hidden({dataset: plain})) is not None:
        raise ConfigError(f"{name!r} holds a control character; expected names that can be shown: rename it")
    asked = StoreInfo(dataset, plain, key_check, transforms=this_transforms())
    with disk_errors():
        if not (folder / NAME).exists():
            write_once(folder / NAME, info_text(replace(asked, format=FORMAT)))
    found = read_info(folder)
    differences = list(list_differences("", _fields(found), _fields(asked)))
    if differences:
        raise ConfigError(
            f"the store was made with other settings: {'; '.join(differences)}; ask for the same, or prepare into "
            "another folder"
        )
    if found.transforms not in (None, asked.transforms):
        warnings.warn(
            f"the store was begun with {found.transforms} and goes on with {asked.transforms}, which rounds some "
            "samples differently: the store's hash will be that of neither version alone",
            stacklevel=2,
        )
    return found


def info_text(info: StoreInfo) -> str:
    """Return store.json as a text."""
    return to_text({"format": info.format, "transforms": info.transforms, **_fields(info)})


class ChangingStoreError(StoreError):
    """A store whose files are just being replaced, or were when a kill interrupted it; ``swap.py`` ends that."""


def changing_text(put: Sequence[str], remove: Sequence[str]) -> str:
    """Return the note that stands in store.json while files move in and others go."""
    fields = {"format": _CHANGING, "put": list(put), "remove": list(remove)}
    return json.dumps({**fields, "sha256": _sum(fields)}, indent=2, sort_keys=True) + "\n"


def read_changing(folder: Path) -> tuple[list[str], list[str]] | None:
    """Return the files that move in and those that go, by the note; None where store.json is none."""
    with disk_errors("read"):
        data = (folder / NAME).read_bytes()
    try:
        values = parse_json(data)
        if values["format"] != _CHANGING:
            return None
        fields = without_sum(values)
        return list(map(str, fields["put"])), list(map(str, fields["remove"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise StoreError(f"{NAME} of the store is damaged; restore it from a copy, or prepare anew") from None


def mark(folder: Path) -> str:
    """Return a hash of store.json, which every change of settings changes; empty where there is none."""
    with disk_errors("read"):
        try:
            return hashlib.sha256((folder / NAME).read_bytes()).hexdigest()
        except (FileNotFoundError, NotADirectoryError):
            return ""


def read_info(folder: Path) -> StoreInfo:
    """Read what the store in this folder was made of."""
    with disk_errors("read"):
        try:
            data = (folder / NAME).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            if not folder.exists():
                raise StoreError(
                    "the store does not exist: there is nothing at that path; check it, or make a store there with "
                    "cerebro-eeg prepare"
                ) from None
            raise StoreError(
                f"this folder is not a store: it has no {NAME}; make one with cerebro-eeg prepare"
            ) from None
    try:
        values = parse_json(data)
        version = values["format"]
        if version == _CHANGING:
            raise ChangingStoreError(
                "the options of the store are just being changed, or that was interrupted: run its prepare command "
                "again, which ends it"
            )
        if (name := _hidden(values)) is not None:
            raise StoreError(f"{name!r} in {NAME} holds a control character, which prepare never writes; prepare anew")
        if version in _READ:
            if version >= _SUMS_SINCE or "sha256" in values:
                values = without_sum(values)
            fields = str(values["dataset"]), dict(values["settings"]), values["key_check"], int(version)
            return StoreInfo(*fields, values.get("transforms"))
    except StoreError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError):
        raise StoreError(f"{NAME} of the store is damaged; restore it from a copy, or prepare anew") from None
    raise StoreError(
        f"the store has format {shown(version)}, this version reads {', '.join(map(str, _READ))}; use the version "
        "that made it, or prepare anew"
    )


def _hidden(value: Any) -> str | None:
    """Return a text among JSON values that could not be shown as it is, such as a class with a line end; or None."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return next((found for one in value if (found := _hidden(one)) is not None), None)
    return value if isinstance(value, str) and has_controls(value) else None


def has_own_form(path: Path) -> bool:
    """Return whether a file has exactly the bytes that ``to_text`` gives for its fields, which were read before."""
    data = path.read_bytes()
    fields = parse_json(data)
    fields.pop("sha256", None)
    return to_text(fields).encode() == data


def to_text(fields: dict[str, Any]) -> str:
    """Return a JSON file of a store with these fields and, since format 3, their sum."""
    if fields.get("format", _SUMS_SINCE) >= _SUMS_SINCE:
        fields = {**fields, "sha256": _sum(fields)}
    return json.dumps(fields, indent=2, sort_keys=True) + "\n"


def without_sum(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a JSON file without their sum, which must be right; a ValueError or KeyError otherwise."""
    fields = {name: value for name, value in values.items() if name != "sha256"}
    if values["sha256"] != _sum(fields):
        raise ValueError("the sum is wrong")
    return fields


def _sum(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def this_transforms() -> str:
    """Return the library that computes Fourier transforms here."""
    import scipy

    return "SciPy " + ".".join(scipy.__version__.split(".")[:2])


def _fields(info: StoreInfo) -> dict[str, Any]:
    return {"dataset": info.dataset, "settings": info.settings, "key_check": info.key_check}


def list_differences(where: str, old: Any, new: Any) -> Iterator[str]:
    """Yield each field that differs, with both values; fields of objects one by one."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old | new):
            path = f"{where}.{name}".removeprefix(".").removeprefix("settings.")
            if name not in old or name not in new:
                have, ask = (f"{shown(side[name])}" if name in side else "absent" for side in (old, new))
                yield f"{path} is {have} in the store, {ask} was asked for"
            else:
                yield from list_differences(path, old[name], new[name])
    elif where == "key_check" and old != new:
        yield "its ids were made with another key (give --key the file that it was made with)"
    elif old != new or isinstance(old, bool) != isinstance(new, bool):
        yield f"{where} is {shown(old)} in the store, {shown(new)} was asked for"
