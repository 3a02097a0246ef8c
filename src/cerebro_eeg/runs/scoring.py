"""Scoring: all trainings of a fine-tuning run on the windows of its test split, which is scored once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.model import checkpoint
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.runs.judging import Judge, Training, assess, predict
from cerebro_eeg.runs.probing import one_for_all, seeds_that_differ
from cerebro_eeg.runs.scored import Record, of_seeds, read_record, summarise, write_record
from cerebro_eeg.runs.seen import unknown_overlap
from cerebro_eeg.runs.settings import Untrained
from cerebro_eeg.runs.splitting import Cut, find_splits
from cerebro_eeg.scores.predictions import Predictions
from cerebro_eeg.train.distributed import meet

Part = Literal["test", "validation"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Evaluation:
    """What is said of a run."""

    folder: Path
    split: Part
    task: Mapping[str, Any]
    unit: str
    """What no two splits share."""
    summary: Mapping[str, Any]
    trainings: tuple[Mapping[str, Any], ...]
    scorings: int
    """Times that the test set was scored, this one included; 0 for validation."""
    fresh: bool
    """Made now; otherwise it is the first score, unchanged."""
    first: Mapping[str, Any] | None
    """The summary of the first scoring, where this is a later one."""
    notes: tuple[str, ...]


def evaluate(
    run: Path,
    store_folder: Path,
    *,
    split: Part = "test",
    again: bool = False,
    device: str = "auto",
    events: bool = False,
    untrained: Untrained | None = None,
    resamples: int = 1000,
    say: Say = lambda line: None,
) -> Evaluation:
    """Score every training of a fine-tuning run; the test set once, unless ``again``."""
    folder = RunFolder(run)
    settings = _read_settings(folder)
    store = Store(store_folder)
    _check_store(store, settings["store"])
    with meet(device) as world, folder.held():
        if world.size > 1:
            raise ConfigError(f"evaluate was started in {world.size} processes; start it in one")
        trainings = list(_find(run, store, settings, split))
        choices, seeds = settings["choices"], seeds_that_differ(settings)
        as_is = choices["rate"] == "as_is"
        judge = Judge(store, world, events, untrained or choices["untrained"], as_is, resamples, say)
        facts = (run, split, settings["task"], settings["unit"])
        told = [checkpoint.read_header(t.folder.model).training for t in trainings]
        unknown = {line for one in told if (line := unknown_overlap(one, settings["store"]["sha256"])) is not None}
        known = [*filter(None, [one_for_all(settings)]), *sorted(unknown)]
        if split == "validation":
            scored = [_tell(say, assess(judge, t, predict(judge, t), write=False), t) for t in trainings]
            return Evaluation(*facts, summarise(scored), tuple(scored), 0, True, None, tuple(known))
        before = _before(run, trainings)
        if before is not None and not again:
            notes = [*known, *_changed(before, trainings), *_without_threshold(before, trainings)]
            write_record(run, before)
            return _told(facts, of_seeds(before.first, seeds), before.scorings, False, None, notes)
        notes = known
        if before is not None:  # counted before anything is seen, so that stopping halfway does not hide it
            before = Record(before.scorings + 1, before.first, before.last)
            write_record(run, before)
        records = [_score(judge, training, again, notes, say) for training in trainings]
        last = _joined([record.last for record in records])
        if before is None:
            first, scorings = _joined([record.first for record in records]), max(r.scorings for r in records)
        else:
            first, scorings = before.first, before.scorings
        write_record(run, Record(scorings, first, last))
        told_first = of_seeds(first, seeds)
        return _told(facts, last if again else told_first, scorings, True, told_first if scorings > 1 else None, notes)


def _read_settings(folder: RunFolder) -> dict[str, Any]:
    """The settings of a fine-tuning run, or an error that says what else this is."""
    path = folder.path
    if path.is_file() or (folder.model.exists() and not (path / "run.json").exists()):
        raise ConfigError(f"{path} is a checkpoint; evaluate scores the folder of a run that finetune --out made")
    found = folder.read()
    settings: dict[str, Any] = found["settings"]
    if found["verb"] == "pretrain":
        raise ConfigError(f"{path} is a pre-training run, which answers nothing yet; finetune it, then evaluate that")
    if "choices" not in settings or "store" not in settings:
        raise ConfigError(f"{path} is one training of a run; give the folder of the run that it lies in")
    return settings


def _check_store(store: Store, wanted: Mapping[str, str]) -> None:
    found = store.hash()
    if found != wanted["sha256"]:
        raise InputError(
            f"the store ({store.info.dataset}, SHA-256 {found[:16]}...) is not the one that the run was trained on "
            f"({wanted['dataset']}, {wanted['sha256'][:16]}...); give that one, so that no test subject was trained on"
        )


def _find(run: Path, store: Store, settings: Mapping[str, Any], part: Part) -> Iterator[Training]:
    """The trainings with their windows, cut as they were for training."""
    choices, task = settings["choices"], settings["task"]
    cut = Cut(**{**task, "names": tuple(task["names"])})
    splits, seeds = list(find_splits(store, cut, choices["folds"])), seeds_that_differ(settings)
    folders = [(run / split.name / f"seed-{seed}") for split in splits for seed in seeds]
    unfinished = [path.relative_to(run).as_posix() for path in folders if not RunFolder(path).model.exists()]
    if unfinished:
        raise ConfigError(
            f"{len(unfinished)} of {len(folders)} trainings are not finished ({', '.join(unfinished[:6])}"
            f"{', ...' if len(unfinished) > 6 else ''}); start the same finetune command again, then evaluate"
        )
    for split, counts in zip(splits, settings["windows"], strict=True):
        windows, before = (split.test, counts[2]) if part == "test" else (split.validation, counts[1])
        if windows is None or not len(windows):
            raise InputError(f"task {cut.task!r} has no {part} windows; say --split, or finetune with --folds N")
        if len(windows) != before:
            raise InputError(
                f"the {part} split has {len(windows):,} windows and had {before:,} when the run was trained; use the "
                "release of cerebro-eeg that trained it"
            )
        for seed in seeds:
            yield Training(RunFolder(run / split.name / f"seed-{seed}"), split.name, seed, windows)


def _before(run: Path, trainings: Sequence[Training]) -> Record | None:
    """The run's record, or what those of all its trainings say; None where the first scoring has not ended."""
    whole = read_record(run)
    found = [read_record(training.folder.path) for training in trainings]
    known = [record for record in found if record is not None]
    if whole is None and len(known) < len(trainings):
        return None
    if whole is None:
        whole = Record(1, _joined([record.first for record in known]), _joined([record.last for record in known]))
    return Record(max([whole.scorings, *(record.scorings for record in known)]), whole.first, whole.last)


def _score(judge: Judge, training: Training, again: bool, notes: list[str], say: Say) -> Record:
    """The record of a training, scored now where it was not yet, or once more."""
    folder = training.folder.path
    kept = folder / "test.npz"
    old = read_record(folder)
    if old is None and kept.exists():  # of a scoring that was stopped, or the record was deleted
        notes.append(f"{training.place} had test.npz but no test.json: the first score is of those predictions")
        found = assess(judge, training, Predictions.load(kept), write=True)
        old = Record(1, found, found)
        write_record(folder, old)
    if old is not None and not again:
        return old
    predictions = predict(judge, training)
    predictions.save(kept if old is None else folder / "test-again.npz")
    found = _tell(say, assess(judge, training, predictions, write=True), training)
    record = Record(1, found, found) if old is None else Record(old.scorings + 1, old.first, found)
    write_record(folder, record)
    return record


def _changed(before: Record, trainings: Sequence[Training]) -> list[str]:
    """Trainings whose weights are no longer those of the first score."""
    scored = {(score["fold"], score["seed"]): score["weights"] for score in before.first["trainings"]}
    return [
        f"the weights of {training.place} have changed since this score; --again scores the new ones"
        for training in trainings
        if scored.get((training.fold, training.seed)) != training.hash()
    ]


def _without_threshold(before: Record, trainings: Sequence[Training]) -> list[str]:
    """A first score of a release that did not yet score the threshold of the weights."""
    known = all(score["scores"]["at_threshold"] for score in before.first["trainings"])
    heads = [checkpoint.read_header(training.folder.model).head for training in trainings]
    if known or not any(head is not None and head.threshold is not None for head in heads):
        return []
    return ["this score is older than scores at the threshold that predict decides by; --again has them"]


def _joined(scores: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"summary": summarise(scores), "trainings": list(scores)}


def _told(
    facts: tuple[Path, Part, Mapping[str, Any], str],
    score: Mapping[str, Any],
    scorings: int,
    fresh: bool,
    first: Mapping[str, Any] | None,
    notes: Sequence[str],
) -> Evaluation:
    earlier = None if first is None else first["summary"]
    return Evaluation(*facts, score["summary"], tuple(score["trainings"]), scorings, fresh, earlier, tuple(notes))


def _tell(say: Say, found: dict[str, Any], training: Training) -> dict[str, Any]:
    say(f"scored {training.place}: {len(training.windows):,} windows")
    return found
