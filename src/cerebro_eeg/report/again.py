"""Again: the commands that make a run or a comparison once more, from what ``run.json`` keeps.

They name the stores and weights as the first command did. A whole path says whose machine it was, so only its last name
is shown. Settings are those that differ from a preset, which needs no file beside the page.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

from cerebro_eeg.config import PRESETS
from cerebro_eeg.model.checkpoint import OBJECTIVE
from cerebro_eeg.progress import counted
from cerebro_eeg.runs import few_subjects
from cerebro_eeg.runs.finetune import FinetuneOptions
from cerebro_eeg.runs.pretrain import PretrainOptions
from cerebro_eeg.runs.training import fit_batch
from cerebro_eeg.schema import to_dict

TABLES = ("model", "objective", "pretrain", "finetune")
_UNKNOWN = "my-weights"


@dataclass(frozen=True)
class Again:
    """Lines for a shell, and a sentence on where to start them."""

    lines: tuple[str, ...]
    note: str


def again(run: Mapping[str, Any], *, scored: bool = False) -> Again:
    """Return the commands of a pre-training or fine-tuning; of one that was ``scored``, also that of ``evaluate``."""
    settings, verb = run["settings"], run["verb"]
    choices, given = dict(settings["choices"]), _given(run)
    if choices.get("minutes") and "steps" in run:  # the number that the minutes had room for
        choices |= {"minutes": None, "steps": run["steps"]}
    stores = given["stores"]
    new = f"{choices['task']}-again" if verb == "finetune" else "pretrain-again"
    words = [verb, *map(_as_path, stores)]
    name, changes = _nearest_preset(run)
    options: list[tuple[str, Any]] = []
    if verb == "finetune":
        options += [("task", choices.pop("task")), ("from", given["from"] or "none"), ("preset", name)]
        options += _finetune_options(choices, settings["from"] is None)
    else:
        options += [("from", given["from"]), ("preset", name)]
        options += [(key, value) for key, value in choices.items() if not _is_default(PretrainOptions, key, value)]
    options += [("set", [f"{path}={json.dumps(value)}" for path, value in changes.items()]), ("out", new)]
    lines = [_line(words, options)]
    if scored:
        lines.append(_line(["evaluate", _as_path(new), _as_path(stores[0])], []))
    return Again(tuple(lines), _note(given, stores))


def again_compare(run: Mapping[str, Any], tables: Sequence[Mapping[str, Any]]) -> Again:
    """Return the command of a comparison, for the tasks and methods that its tables have."""
    settings, given = run["settings"], _given(run)
    options: list[tuple[str, Any]] = [("from", given["from"]), ("tasks", [one["task"] for one in tables])]
    if settings["quick"]:
        options.append(("quick", True))
    else:
        names = dict.fromkeys(row["name"] for one in tables for row in one["rows"])
        options += [("methods", list(names)), ("repeats", settings["repeats"]), ("seeds", settings["seeds"])]
    options += [("balanced", settings["balanced"]), ("no-test", not settings["test"])]
    options += [("untrained", settings["untrained"]), ("out", "comparison-again")]
    return Again((_line(["compare", _as_path(given["stores"][0])], options),), _note(given, given["stores"]))


def _given(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names of stores and weights; earlier releases did not write them, so readers put in their own."""
    settings = run["settings"]
    stores = settings.get("stores") or [settings["store"]]
    weights = None if settings["from"] is None else _UNKNOWN
    unknown = {"stores": [f"{store['dataset']}-store" for store in stores], "from": weights, "known": False}
    return {**unknown, **run["given"], "known": True} if "given" in run else unknown


def _note(given: Mapping[str, Any], stores: Sequence[str]) -> str:
    what = " and ".join([counted(len(stores), "store"), *(["weights"] if given["from"] not in (None, "none") else [])])
    if not given["known"]:
        return f"This run does not record how its {what} were called: put in your own names."
    where = "in the folder where the first command was started"
    if given.get("whole"):
        where = f"where {', '.join(given['whole'])} can be found (only the last part of a whole path is shown)"
    return f"Start it {where}. On the same machine and release it gives the same numbers; the store's hash is above."


def _finetune_options(choices: dict[str, Any], new: bool) -> Iterator[tuple[str, Any]]:
    """Yield the options of ``finetune`` that are no default; what the verb fills in itself is left out."""
    seeds = choices.pop("seeds")
    if len(seeds) > 1 or seeds[0]:
        yield from (("seeds", len(seeds)), ("seed", min(seeds)))
    if choices.pop("centring", None) is False:
        yield "no-centring", True
    readout = choices.pop("readout", None)
    own = "auto" if choices["freeze"] and choices["solver"] == "exact" and not choices["paper"] else None
    if readout != own:
        yield "readout", readout or "mean"
    filled: dict[str, Any] = {"untrained": "as_is"} if choices["freeze"] and new else {}
    filled |= {"lora": few_subjects.RANK, "steps": few_subjects.STEPS} if choices.get("few") else {}
    for name, value in choices.items():
        if name in filled and value == filled[name]:
            continue
        if not _is_default(FinetuneOptions, name, value):
            yield name, value


def _is_default(options: type, name: str, value: Any) -> bool:
    default = next((field.default for field in fields(options) if field.name == name), MISSING)
    return bool(value == default) or (default == () and value == [])


def _nearest_preset(run: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the preset with the fewest differences from the settings, and these differences."""
    found = {name: dict(_changes(run, name)) for name in PRESETS}
    name = min(found, key=lambda name: len(found[name]))
    return name, found[name]


def _changes(run: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    """Yield the fields that ``--set`` must change in a preset. The model is that of the weights, if there are any."""
    settings, one = run["settings"], PRESETS[name]
    before = dict(_flat("", {table: to_dict(getattr(one, table)) for table in TABLES}))
    if settings["choices"].get("few"):
        before |= few_subjects.HYPERPARAMETERS
    asked = ["pretrain", "finetune"] if settings["from"] is not None else list(TABLES)
    values = {table: settings[table] for table in asked if settings.get(table) is not None}
    if "objective" in values:
        values["objective"] = OBJECTIVE | values["objective"]  # fields that early files lack are left out of run.json
    for path, value in _flat("", values):
        batch = "pretrain.batch_size"
        if path == batch:  # it was fitted to the windows, and will be again
            fits = fit_batch(before[batch], sum(settings["windows"]), settings["choices"]["paper"], lambda line: None)
            before[batch] = fits
        signal = path.startswith("model.signal.") and run["verb"] == "pretrain"  # the store decides
        if before.get(path) != value and not signal:
            yield path, value


def _flat(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield where, value
        return
    for name, inside in value.items():
        yield from _flat(f"{where}.{name}" if where else name, inside)


def _line(words: Sequence[str], options: Sequence[tuple[str, Any]]) -> str:
    """Return a line for a POSIX shell, with every word quoted that needs it."""
    found = ["cerebro-eeg", *words]
    for name, value in options:
        if value is None or value is False or value == []:
            continue
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            found.append(flag)
        elif isinstance(value, list):
            found += [flag, *map(str, value)]
        else:
            dashed = str(value).startswith("-")  # it would be taken for an option
            found += [f"{flag}={value}"] if dashed else [flag, str(value)]
    return shlex.join(found)


def _as_path(name: str) -> str:
    """Return a path that no program takes for an option."""
    return f"./{name}" if name.startswith("-") else name
