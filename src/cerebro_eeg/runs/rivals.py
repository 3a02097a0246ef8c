"""Rivals: simple features with logistic regression, on the same windows and splits as the model that is scored.

A foundation model is of use only where it beats what takes seconds. So every score stands beside log band power, log
covariances in a filter bank, both together, and these with narrower bands. They use no encoder. Cross-validation over
training and validation subjects chooses the strength of a linear model and whether features are centred per subject, as
for our own read-outs.

Two controls stand beside them. Chance answers with the shares of the classes, or the means of the targets. Random
weights are a head like ours on a new encoder of the same size: where they do as well, pre-training does not show.
"""

import contextlib
import contextvars
import json
import os
import shlex
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cerebro_eeg.batch import Batch
from cerebro_eeg.config import ModelConfig, ReadoutPart, preset
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, StoppedError
from cerebro_eeg.files import begin_sums, parse_json, write_text
from cerebro_eeg.model import checkpoint
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.checkpoint import Header
from cerebro_eeg.model.encoder import Encoder
from cerebro_eeg.model.readouts import Readout, widths
from cerebro_eeg.runs.fold_features import FoldFeatures, fold_features
from cerebro_eeg.runs.linear_models import CrossValidation, LinearModel, groups_of, labelled
from cerebro_eeg.runs.readout_choice import (
    AUTO_WIDE,
    READOUTS,
    WIDE,
    fit_readout,
    head_outputs,
    install,
    members,
    parts_to_fit,
    readout_config,
    shared_channels,
)
from cerebro_eeg.runs.store_predictions import KeptFeatures, predict_windows, to_predictions
from cerebro_eeg.runs.windows import Split, needs_encoder, pick_targets, signal_of
from cerebro_eeg.scores.paired import Paired, paired_with_all
from cerebro_eeg.scores.predictions import Predictions, choose_threshold, threshold_level
from cerebro_eeg.scores.tables import title
from cerebro_eeg.train.distributed import ProcessGroup

NICE = 10
"""Priority of the thread that computes rivals while other processes train; 19 is the lowest."""
RIVALS = {
    "band power": "power",
    "filter-bank covariance": "tangent",
    "power and covariance": "simple",
    "with narrow bands": "signal",
}
"""What a simple rival is called, and the read-out that it is."""
CHANCE, RANDOM = "chance", "random weights"
FORMAT = 2
FILE = "rivals.json"
FILES = {"test": FILE, "validation": "rivals-validation.json"}
"""The file of a run that keeps the comparison on a split."""
KEPT = "rivals"
"""The folder of a run with what each rival predicted; reports draw from it."""
SAVED = "simple"
"""The folder of a run with the simple rival that won on validation."""
WIN = 0.9
"""Share of the draws of subjects in which a model must be ahead to win."""
Part = Literal["test", "validation"]
Rows = Sequence[Mapping[str, Any]]
"""A comparison as its file holds it: one entry per rival."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class RivalAnswers:
    """What a rival predicts for the windows of a split, and how it was made."""

    predictions: Predictions
    centred: bool = False
    """Whether it was centred per subject."""
    model: LinearModel | None = None
    """The linear model of a simple rival."""


class SimpleFeatures:
    """Features of the simple rivals for the windows of a task; several folds compute each window once."""

    def __init__(self, store: Store, split: Split, processes: ProcessGroup, asked: Store | None = None) -> None:
        """``asked`` is the store of the test windows, where that is another one."""
        most = max(len(names) for names in split.train.facts.montages)
        tiny = preset("tiny").model  # these features need no encoder; a saved rival holds this one, unused
        self.config = replace(
            tiny,
            signal=signal_of(store),
            window=max(split.train.samples, tiny.window),
            max_channels=max(most, tiny.max_channels),
        )
        channels = shared_channels(split)
        self.rivals = self.names(split)
        """The rivals that so many channels allow, and their read-outs."""
        parts = tuple(dict.fromkeys(part for of in self.rivals.values() for part in READOUTS[of]))
        self.readout = Readout(readout_config(parts, channels), self.config).to(processes.device) if channels else None

        def read(module: nn.Module, batch: Batch) -> torch.Tensor:
            assert isinstance(module, Readout)
            return module.raw(batch, cast(Encoder, None))  # these parts need no encoder

        def kept_of(place: Store) -> KeptFeatures:
            def compute(windows: Windows) -> NDArray[np.float32]:
                assert self.readout is not None
                return predict_windows(self.readout, place, windows, processes, read=read)

            return KeptFeatures(compute)

        self.kept = kept_of(store)
        self.asked_store = store if asked is None else asked
        self.of_asked = self.kept if asked is None else kept_of(asked)

    @staticmethod
    def names(split: Split) -> dict[str, str]:
        """Return the rivals that the channels of a split allow, and their read-outs."""
        wide = len(shared_channels(split)) >= WIDE
        return {name: of for name, of in RIVALS.items() if of in AUTO_WIDE or not wide}

    @property
    def sizes(self) -> dict[ReadoutPart, int]:
        """Number of features of each part."""
        assert self.readout is not None
        return dict(zip(self.readout.config.parts, widths(self.readout.config, self.config), strict=True))


def rival_predictions(
    store: Store,
    split: Split,
    processes: ProcessGroup,
    *,
    part: Part = "test",
    balanced: bool = False,
    centring: bool = True,
    features: SimpleFeatures | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, RivalAnswers]:
    """Return what each simple rival predicts for the windows of a split; nothing if its windows share no channels.

    Training and validation subjects choose a rival's strength and centring, by cross-validation, and fit it. Its
    predictions for validation windows are those of the cross-validation.
    """
    features = features or SimpleFeatures(store, split, processes)
    asked = split.test if part == "test" else split.validation
    if features.readout is None or asked is None:
        return {}
    used = parts_to_fit(split, True, lambda line: None)
    _leave_if(stopped())
    data = labelled([(windows, features.kept.of(windows)) for windows in used.values()], features.sizes)
    found, crossed = {}, None
    for name, readout in features.rivals.items():
        _leave_if(stopped())
        # A rival may add up what the one before it is: each candidate is cross-validated once.
        crossed = CrossValidation(data, *members([readout]), balanced=balanced, centring=centring, before=crossed)
        fitted = crossed.fitted([readout])
        if part in used:
            assert fitted.own_held_out is not None
            output = fitted.own_held_out[-len(asked) :]
        else:
            raw = features.of_asked.of(asked)[:, data.columns(fitted.parts)]
            output = pick_targets(fitted.outputs(raw, groups_of(asked)), split.train.names, asked)
        found[name] = RivalAnswers(to_predictions(features.asked_store, asked, output), fitted.centred, fitted)
    return found


def _leave_if(stopped: bool) -> None:
    if stopped:
        raise StoppedError("stopped before the rivals had answered; the same command goes on")


def chance_predictions(store: Store, split: Split, part: Part) -> RivalAnswers:
    """Return one answer for all windows: the shares of the classes in training, or the means of the targets."""
    asked, train = split.test if part == "test" else split.validation, split.train
    assert asked is not None
    if train.target is None:
        count = np.bincount(train.label, minlength=len(train.names))
        answer = np.log(np.maximum(count / count.sum(), 1e-12))
    else:
        answer = train.target.mean(0, dtype=np.float64)
    output = np.tile(answer, (len(asked), 1)).astype(np.float32)
    return RivalAnswers(to_predictions(store, asked, pick_targets(output, train.names, asked)))


def random_predictions(
    store: Store,
    split: Split,
    processes: ProcessGroup,
    config: ModelConfig,
    *,
    readout: str = "encoder",
    part: Part = "test",
    balanced: bool = False,
    centring: bool = True,
    folds: FoldFeatures | None = None,
    asked_store: Store | None = None,
    say: Say = lambda line: None,
) -> RivalAnswers:
    """Return what a head predicts that reads a new encoder of this size, drawn with seed 0.

    The read-out has a name of ``finetune --readout``. Its head is chosen by the same cross-validation as ours.
    ``asked_store`` is the store of the test windows, where that is another one.
    """
    windows, asked = split.train, split.test if part == "test" else split.validation
    assert asked is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _new_model(replace(config, signal=signal_of(store)), windows)
    model.to(processes.device)
    fitted = fit_readout(
        model, store, split, readout, processes, balanced=balanced, centring=centring, folds=folds, say=say
    )
    if part in fitted.held_out:
        output = fitted.held_out[part][fitted.model.name]
    else:
        output = head_outputs(model, asked_store or store, asked, processes, say=say)
        output = pick_targets(output, windows.names, asked)
    return RivalAnswers(to_predictions(asked_store or store, asked, output), fitted.model.centred)


def _new_model(config: ModelConfig, windows: Windows) -> Cerebro:
    task: Literal["classification", "regression"] = "classification" if windows.target is None else "regression"
    return Cerebro(len(windows.names), config=config, task=task, n_times=windows.samples)


# Beside the scores of a run


@dataclass(frozen=True)
class AskedOfRivals:
    """What all rivals of a run answer, and how they are chosen."""

    store: Store
    splits: Sequence[Split]
    processes: ProcessGroup
    part: Part
    balanced: bool
    centring: bool
    stopped: Callable[[], bool] = lambda: False
    """Whether nobody waits for the answers any more."""

    def simple(self) -> tuple[SimpleFeatures, dict[str, dict[str, RivalAnswers]]]:
        """Return the answers of the simple rivals by fold and name, and the features that they read."""
        features = SimpleFeatures(self.store, self.splits[0], self.processes)
        how: dict[str, Any] = {"part": self.part, "balanced": self.balanced, "centring": self.centring}
        answers = {}
        for split in self.splits:
            answers[split.name] = rival_predictions(
                self.store, split, self.processes, **how, features=features, stopped=self.stopped
            )
        return features, answers

    def random(self, control: "Control", say: Say) -> dict[str, RivalAnswers]:
        """Return the answers of a head on random weights, by fold."""
        how: dict[str, Any] = {"part": self.part, "balanced": self.balanced, "centring": self.centring, "say": say}
        folds = {readout: fold_features(self.splits) for readout in set(control.readouts.values())}
        found = {}
        for split in self.splits:
            _leave_if(self.stopped())
            say(f"a head on random weights{f', {split.name}' if split.name else ''}")
            how |= {"readout": control.readouts[split.name], "folds": folds[control.readouts[split.name]]}
            found[split.name] = random_predictions(self.store, split, self.processes, control.config, **how)
        return found


@dataclass(frozen=True)
class Control:
    """A head on random weights: the size of the encoder, and the read-out in each fold."""

    config: ModelConfig
    readouts: Mapping[str, str]


class RivalsAhead:
    """Computes the answers of rivals in a thread, while other processes train.

    ``control`` is the head on random weights, if one is asked for and is known already. ``then`` is called last.
    """

    def __init__(
        self, asked: AskedOfRivals, control: Control | None = None, then: Callable[[], None] = lambda: None
    ) -> None:
        self._stop, self._then = threading.Event(), then
        self.asked, self.control = replace(asked, stopped=self._stop.is_set), control
        self._simple: tuple[SimpleFeatures, dict[str, dict[str, RivalAnswers]]] | None = None
        self._random: dict[str, RivalAnswers] | None = None
        self._error: Exception | None = None
        threads, context = torch.get_num_threads(), contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._work, threads), daemon=True)
        self._thread.start()

    def _work(self, threads: int) -> None:
        if sys.platform == "linux":  # where threads have a priority of their own: the trainings come first
            with contextlib.suppress(OSError):  # some containers forbid it
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        torch.set_num_threads(threads)  # a new thread has a number of its own, and last bits depend on it
        try:
            if self.asked.processes.device.type == "cuda":
                torch.cuda.set_device(self.asked.processes.device)
            self._simple = self.asked.simple()
            if self.control is not None:
                self._random = self.asked.random(self.control, lambda line: None)
            self._then()
        except Exception as error:
            self._error = error

    def stop(self) -> None:
        """End the thread as soon as possible, and wait for that: Python must not end in the middle of a computation."""
        self._stop.set()
        self._thread.join()

    def simple(self) -> tuple[SimpleFeatures, dict[str, dict[str, RivalAnswers]]]:
        """Wait for the simple rivals, or raise their error."""
        self._wait()
        assert self._simple is not None
        return self._simple

    def random(self, control: Control, say: Say) -> dict[str, RivalAnswers]:
        """Wait for the head on random weights; compute it here if another one is asked for."""
        self._wait()
        if self._random is not None and self.control == control:
            return self._random
        return self.asked.random(control, say)

    def _wait(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error


@dataclass(frozen=True)
class Ours:
    """A training of the run that is compared: its predictions, and the header of its weights."""

    predictions: Predictions
    header: Header


def compare_with_rivals(
    run: Path,
    asked: AskedOfRivals,
    ours: Mapping[str, Sequence[Ours]],
    *,
    resamples: int,
    say: Say,
    random_weights: bool = False,
    ahead: RivalsAhead | None = None,
) -> list[dict[str, Any]]:
    """Return how the trainings of each fold stand beside the rivals, and keep it in a file of the run.

    A simple rival that wins on validation is saved as a checkpoint of its own before. ``ahead`` has computed rivals
    already, or still does.
    """
    rivals = SimpleFeatures.names(asked.splits[0])
    say("simple rivals on the same windows: " + (", ".join(rivals) or "none"))
    features, simple = asked.simple() if ahead is None else ahead.simple()
    store, part = asked.store, asked.part
    random: dict[str, RivalAnswers] = {}
    if random_weights:
        config = next(iter(ours.values()))[0].header.model
        control = Control(
            replace(config, signal=signal_of(store)), {fold: control_of(trained) for fold, trained in ours.items()}
        )
        random = (asked if ahead is None else ahead).random(control, say)
    draws = resamples if len(asked.splits) == 1 else 0  # several folds have no interval: see _mean
    of_folds: dict[str, list[Paired]] = {}
    answers: dict[str, list[RivalAnswers]] = {}
    for split in asked.splits:
        trained = ours[split.name]
        found = {**simple[split.name], CHANCE: chance_predictions(store, split, part)}
        if random_weights:
            found[RANDOM] = random[split.name]
        answered = [rival.predictions for rival in found.values()]
        pairs = paired_with_all([one.predictions for one in trained], answered, resamples=draws)
        for (name, rival), pair in zip(found.items(), pairs, strict=True):
            _keep(run, part, split.name, name, rival.predictions)
            of_folds.setdefault(name, []).append(pair)
            answers.setdefault(name, []).append(rival)
    rows = joined_rows(of_folds, answers, [one for trained in ours.values() for one in trained])
    best = best_simple(rows)
    if part == "validation" and best is not None and rival_wins(best):
        _save(run / SAVED, store, asked.splits[0], answers[best["name"]][0], features)
    write_text(run / FILES[part], json.dumps({"format": FORMAT, "rivals": rows}, indent=2, allow_nan=False) + "\n")
    return rows


def joined_rows(
    of_folds: Mapping[str, Sequence[Paired]], answers: Mapping[str, Sequence[RivalAnswers]], ours: Sequence[Ours]
) -> list[dict[str, Any]]:
    """Return one row of the comparison per rival, from its differences and answers in each fold."""
    needs = any(needs_encoder(one.header) for one in ours)
    return [
        {"name": name, "centred": all(one.centred for one in answers[name]), "encoder": needs, **_mean(of)}
        for name, of in of_folds.items()
    ]


def _keep(run: Path, part: Part, fold: str, rival: str, predictions: Predictions) -> None:
    """Write what a rival predicted for the windows of a split, so that tables and curves need no second fit."""
    (run / KEPT).mkdir(exist_ok=True)
    begin_sums(run / KEPT)
    predictions.save(_kept_file(run, part, fold, rival))


def _kept_file(run: Path, part: Part, fold: str, rival: str) -> Path:
    name = "-".join(filter(None, [part, fold, rival])).replace(" ", "-")
    return run / KEPT / f"{name}.npz"


def rival_outputs(run: Path, part: Part, folds: Sequence[str], rival: str) -> list[Predictions]:
    """Return what a rival predicted in each fold; nothing if a file is missing, as in runs of earlier releases."""
    paths = [_kept_file(run, part, fold, rival) for fold in folds]
    return [Predictions.load(path) for path in paths] if all(path.exists() for path in paths) else []


def kept_rivals(run: Path, part: Part, random_weights: bool) -> list[dict[str, Any]] | None:
    """Return the comparison that a run keeps; None if there is none, or none with random weights where asked for."""
    rows = read_rivals(run, part)
    missing = rows is not None and random_weights and not any(row["name"] == RANDOM for row in rows)
    return None if missing else rows


def read_rivals(run: Path, part: Part = "test") -> list[dict[str, Any]] | None:
    """Return the kept comparison of a run; None if there is none."""
    try:
        found = parse_json((run / FILES[part]).read_text(encoding="utf-8"))
        if found["format"] == FORMAT and isinstance(found["rivals"], list):
            return list(found["rivals"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        pass
    raise ConfigError(f"{FILES[part]} of {run} is damaged; delete it and run the same command again")


def control_of(trained: Sequence[Ours]) -> str:
    """Return the read-out of the control: hybrid for heads that read simple features, too, otherwise the encoder's."""
    hybrid = set(READOUTS["hybrid"])
    heads = [one.header.head for one in trained]
    return "hybrid" if any(head is not None and set(head.readout.parts) == hybrid for head in heads) else "encoder"


def control_readout(named: str | None) -> str:
    """Return the same, known before, for heads whose read-out was named; None is the paper's mean."""
    return "hybrid" if named is not None and set(READOUTS.get(named, ())) == set(READOUTS["hybrid"]) else "encoder"


def _mean(folds: Sequence[Paired]) -> dict[str, Any]:
    """Return the means over folds. With several folds there is no interval, because each has a model of its own."""
    first = asdict(folds[0])
    if len(folds) == 1:
        return first
    values = {key: float(np.mean([getattr(of, key) for of in folds])) for key in ("ours", "rival", "difference")}
    return {
        **first,
        **values,
        "subjects": sum(of.subjects for of in folds),
        "low": None,
        "high": None,
        "above": None,
        "below": None,
    }


def _save(folder: Path, store: Store, split: Split, rival: RivalAnswers, features: SimpleFeatures) -> None:
    """Write a simple rival, fitted on training and validation subjects, as a checkpoint like any other.

    Its threshold is chosen on answers of the cross-validation, as that of our own heads. The encoder inside is a new
    one that nothing reads.
    """
    found, readout = rival.model, features.readout
    assert found is not None
    assert readout is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _new_model(features.config, split.train)
        install(model, found, readout.cpu(), split)
    deciding = rival.predictions
    held_out = found.own_held_out
    if held_out is not None and len(held_out) > len(deciding):  # answers for training windows as well
        deciding = to_predictions(store, split.train, held_out[: len(split.train)]).joined(deciding)
    if deciding.kind == "classification" and len(deciding.names) == 2:
        assert model.head is not None
        model.head = replace(
            model.head, threshold=choose_threshold(deciding), threshold_level=threshold_level(deciding)
        )
    folder.mkdir(exist_ok=True)
    checkpoint.save_tensors(folder / "model.safetensors", model.state_dict(), model.header)
    begin_sums(folder, ["model.safetensors"])


# In words


def best_simple(rows: Rows) -> Mapping[str, Any] | None:
    """Return the best simple rival; None where windows share no channels."""
    simple = [row for row in rows if row["name"] not in (CHANCE, RANDOM)]
    return max(simple, key=lambda row: row["rival"]) if simple else None


def rival_wins(row: Mapping[str, Any]) -> bool:
    """Return whether a rival is ahead of a model that reads an encoder, in nine of ten draws of subjects."""
    return row["encoder"] and row["below"] is not None and row["below"] >= WIN


def rival_lines(rows: Rows, part: str = "test") -> list[str]:
    """Return the table of rivals as text, and the sentences on who wins."""
    metric = title(rows[0]["metric"])
    lines = ["", f"beside rivals on the same {part} windows ({metric} by window; ours {rows[0]['ours']:.3f})"]
    lines.append(f"  {'':<24} {'rival':>7} {'ours -':>7}   95 % over subjects")
    for row in rows:
        between = "n/a" if row["low"] is None else f"{row['low']:+.3f} to {row['high']:+.3f}"
        lines.append(f"  {row['name']:<24} {row['rival']:>7.3f} {row['difference']:>+7.3f}   {between}")
    return [*lines, *(f"  {line}" for line in (verdict(rows), *rival_notes(rows)))]


def saved_words(run: Path, rows: Rows, shown_as: str | None = None) -> str | None:
    """Return words on the rival that won on validation and was saved in the run; None if none was.

    ``shown_as`` stands for the folder of the run, for pages that must not name it.
    """
    best = best_simple(rows)
    if best is None or not rival_wins(best) or not (run / SAVED / "model.safetensors").exists():
        return None
    place = shlex.quote(f"{shown_as or run}/{SAVED}")
    return f"{best['name']} is saved as a model: cerebro-eeg predict {place} FILES --out said"


def verdict(rows: Rows) -> str:
    """Return one sentence on who wins: a win is a difference above 0 in nine of ten draws of subjects."""
    best = best_simple(rows)
    if best is None:
        return "no simple rival: the windows have no channel in common"
    alone = "" if best["encoder"] else "this model reads simple features alone, as the rivals do: "
    return alone + _verdict(best)


def _verdict(best: Mapping[str, Any]) -> str:
    """Return how this model stands beside the best rival."""
    size, name, above = abs(best["difference"]), best["name"], best["above"]
    who = f"{best['subjects']} subjects"
    if above is None:
        side = "ahead of" if best["difference"] > 0 else "behind"
        none = f"no interval is possible with {who} and these folds"
        return f"this model is {size:.3f} {side} the best rival, {name}; {none}"
    if above >= WIN:
        return f"this model wins: {size:.3f} ahead of the best rival, {name}, over {who}"
    if best["below"] >= WIN:
        return f"{name} with a linear model wins by {size:.3f} over {who}: prefer it, it takes seconds"
    return (
        f"no winner: this model and the best rival, {name}, differ by {size:.3f}, which {who} cannot tell from chance"
    )


def rival_notes(rows: Rows) -> list[str]:
    """Return the sentences below the verdict: on random weights, and on what was centred."""
    named = {row["name"]: row for row in rows}
    found = []
    if (control := named.get(RANDOM)) is None:
        if not any(row.get("alone") for row in rows):  # a saved rival stands alone without the data of the run
            found.append(
                "random weights were left out: on a CPU they take as long as a frozen probe; --random-weights adds them"
            )
    elif control["difference"] <= 0 if control["above"] is None else control["above"] < WIN:
        found.append("a head on random weights does as well: what the encoder has learned does not show here")
    if centred := [row["name"] for row in rows if row["centred"]]:
        found.append(f"centred per subject, with all windows of a subject at once: {', '.join(centred)}")
    return found
