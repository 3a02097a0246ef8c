"""Compare: one honest table for the tasks of a store. Simple rivals and CEReBrO answer the same windows.

Every method is chosen by cross-validation over training and validation subjects, and fitted on all of them. The test
split is scored once for each seed. Before that, a line is appended to ``test-log.jsonl``, which nothing here rewrites.
Predictions are kept, so tables, intervals and pictures can be made again without another look.

The folder of a comparison has a folder for each task and, inside, one for each method. A method that is finished is
never computed again, so a stopped comparison goes on, and further tasks and methods can be added.
"""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import CerebroError, ChannelError, ConfigError, InputError
from cerebro_eeg.files import add_sum, begin_sums, parse_json, replacing, write_text
from cerebro_eeg.model import checkpoint, hub
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.progress import counted, in_time
from cerebro_eeg.runs import compare_methods as methods
from cerebro_eeg.runs.compare_costs import costs_of
from cerebro_eeg.runs.compare_methods import METHODS, Group, Method, MethodAnswer, Question
from cerebro_eeg.runs.compare_result import CompareResult
from cerebro_eeg.runs.compare_summary import Row, TaskTable, overall, summarise_task
from cerebro_eeg.runs.folder import RunFolder, given_names
from cerebro_eeg.runs.linear_models import LEAST_GROUPS, CrossValidation, groups_of
from cerebro_eeg.runs.packages import require_packages
from cerebro_eeg.runs.provenance import seen_before
from cerebro_eeg.runs.readout_choice import shared_channels
from cerebro_eeg.runs.settings import Engine, Untrained
from cerebro_eeg.runs.snapshot import usable_weights
from cerebro_eeg.runs.store_predictions import to_predictions
from cerebro_eeg.runs.windows import (
    Electrodes,
    LabelledTask,
    Split,
    check_signal,
    electrodes_of,
    find_splits,
    read_task,
    splits_of,
    untrained_electrodes,
)
from cerebro_eeg.scores.calibration import temperature
from cerebro_eeg.scores.predictions import Predictions
from cerebro_eeg.terminal import CsvWriter
from cerebro_eeg.train.distributed import ProcessGroup, choose_threads, process_group

FORMAT = 1
LOG = "test-log.jsonl"
"""The file that lists every scoring of a test split; lines are only ever appended."""
QUICK_KNOWN, QUICK_TEST = 600, 300
"""Most windows of a task to learn from and to answer, with ``quick``."""
MOST = 10_000
"""Most windows of a task to learn from, and to answer: more are thinned out evenly, or memory would not suffice."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class CompareOptions:
    """The flags of ``compare``; ``commands/compare.py`` explains them."""

    tasks: tuple[str, ...] = ()
    """Names of tasks; all that have labels, if none is given."""
    methods: tuple[str, ...] = ()
    """Names of methods; what is affordable here, if none is given."""
    everything: bool = False
    repeats: int = 3
    seeds: int = 3
    balanced: bool = False
    quick: bool = False
    test: bool = True
    """Score the test split; otherwise cross-validation is all."""
    untrained: Untrained = "nearest"
    resamples: int = 1000


def compare(
    store_folder: Path,
    out: Path,
    options: CompareOptions,
    engine: Engine,
    start: Path,
    *,
    say: Say = lambda line: None,
    show: Say = lambda line: None,
) -> CompareResult:
    """Compare methods on tasks of a store; ``say`` prints lines that stay, and ``show`` the one that changes."""
    require_packages("sklearn", why="compare")
    options = _settled(options)
    folder, store = RunFolder(out), Store(store_folder)
    with contextlib.ExitStack() as stack:
        choose_threads(engine.threads)
        processes = stack.enter_context(process_group(engine.device))
        if processes.size > 1:
            raise ConfigError(f"compare was started in {processes.size} processes; start it in one")
        weights = stack.enter_context(usable_weights(start, say))
        asked, notes = _questions(store, options, processes)
        if not asked:
            raise InputError(f"no task of the store can be compared: {'; '.join(notes)}")
        model = Cerebro.from_pretrained(weights, rate="as_is")
        notes += check_signal([store], model.config)
        stack.enter_context(folder.locked())
        about = _about(store, weights, options)
        engine_facts = {"device": str(processes.device), "threads": torch.get_num_threads()}
        note = folder.begin("compare", about, engine_facts, {"given": given_names([store_folder], start)})
        if note is not None:
            say(f"note: {note}")
        notes += [f"{question.task.task}: {words}" for question, words in _seen(store, model, asked)]
        wanted = [method.name for method in _wanted(options)]
        plan = Plan(out, options, engine, weights, model, say, show)
        chosen = plan.choose(asked, wanted, notes)
        for question, of_task in chosen:
            plan.run(question, of_task, notes)
        tables = []
        for question, _ in chosen:
            show(f"{question.task.task}: intervals over subjects")
            if (table := _table(out, question, options)) is not None:
                tables.append(table)
        begin_sums(out, ["run.json"])
        whole = dataclasses.asdict(overall(tables))
        found = CompareResult(
            str(out), tuple(map(dataclasses.asdict, tables)), whole, tuple(dict.fromkeys(notes)), about
        )
        record = {"format": FORMAT, "about": about, "tables": found.tables, "overall": whole, "notes": found.notes}
        write_text(out / "compare.json", json.dumps(record, indent=2, allow_nan=False) + "\n")
        _write_csv(out / "compare.csv", found.tables)
        return found


def _write_csv(path: Path, tables: Sequence[Mapping[str, Any]]) -> None:
    """Write a line for each task and method; differences are our default minus the method, on the test split."""
    parts = {"cv": ("value", "low", "high"), "test": ("value", "low", "high"), "minus": ("difference", "low", "high")}
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = CsvWriter(file)
        columns = [f"{part}_{key}".removesuffix("_value") for part, keys in parts.items() for key in keys]
        writer.writerow(["task", "metric", "method", "family", *columns, "settings", "readout", "centred", "seconds"])
        for table in tables:
            for row in table["rows"]:
                found = {**row, "minus": row["minus"]["test"]}
                values = ["" if not found[part] else found[part][key] for part, keys in parts.items() for key in keys]
                chosen = [row["chosen"].get(name, "") for name in ("readout", "centred")]
                first = [table["task"], table["metric"], row["name"], row["family"]]
                writer.writerow([*first, *values, row["settings"], *chosen, row["seconds"]])


def _settled(options: CompareOptions) -> CompareOptions:
    """Return the options with those of ``quick`` filled in; raise an error for numbers that are too small."""
    for name in options.methods:
        methods.method_of(name)
    if options.repeats < 1 or options.seeds < 1:
        raise ConfigError(f"repeats is {options.repeats} and seeds {options.seeds}; expected at least 1")
    if options.quick and (options.methods or options.everything):
        raise ConfigError(
            "quick=True leaves trainings out, so it goes neither with methods nor with everything; say one"
        )
    return dataclasses.replace(options, repeats=1, seeds=1) if options.quick else options


def _wanted(options: CompareOptions) -> list[Method]:
    """Return the methods that were asked for, in the order of the table."""
    named = [methods.method_of(name) for name in options.methods]
    return [*(one for one in METHODS if not named or one in named), *(one for one in named if one not in METHODS)]


def _about(store: Store, weights: Path, options: CompareOptions) -> dict[str, Any]:
    """Return the settings that a comparison must keep while tasks and methods are added to it."""
    return {
        "store": {"dataset": store.info.dataset, "sha256": store.hash()},
        "from": checkpoint.hash_tensors(hub.load(weights)[1]),
        "repeats": options.repeats,
        "seeds": options.seeds,
        "balanced": options.balanced,
        "quick": options.quick,
        "test": options.test,
        "untrained": options.untrained,
    }


# The tasks


def _questions(store: Store, options: CompareOptions, processes: ProcessGroup) -> tuple[list[Question], list[str]]:
    """Return the tasks that can be compared, with their windows, and why others cannot."""
    declared = store.info.settings.get("tasks", {})
    named = {name for record in store.recordings for name, spans in record.labels.items() if spans}
    names = list(options.tasks) or [name for name, of in sorted(declared.items()) if of["names"] and name in named]
    found, notes = [], []
    for name in names:
        task = read_task(store, name, None, None, None)
        try:
            question = _question(store, task, options, processes)
        except CerebroError as error:
            if options.tasks:
                raise
            notes.append(f"{name} is left out: {error}")
            continue
        groups = len(np.unique(groups_of(question.known)))
        if groups < LEAST_GROUPS:
            line = f"{name} is left out: {counted(groups, 'subject')} to learn from, and a choice needs {LEAST_GROUPS}"
            if options.tasks:
                raise InputError(line)
            notes.append(line)
            continue
        found.append(question)
    return found, notes


def _question(store: Store, task: LabelledTask, options: CompareOptions, processes: ProcessGroup) -> Question:
    """Return a task with its windows; without a split called train all its windows are there to learn from."""
    folds = [name for name in splits_of(store, task.task) if re.fullmatch("fold[0-9]+", name)]
    if folds or not splits_of(store, task.task):
        parts = list(find_splits(store, task, max(3, len(folds))))
        split = Split("", parts[0].unit, parts[0].train, parts[0].validation, None)
        known = parts[0].train
        for more in (parts[0].validation, parts[0].test):
            known = known if more is None else known.joined(more)
    else:
        (split,) = find_splits(store, task)
        known = split.train if split.validation is None else split.train.joined(split.validation)
    most = (QUICK_KNOWN, QUICK_TEST) if options.quick else (MOST, MOST)
    test = split.test if options.test else None
    test = None if test is None or not len(test) else _thinned(test, most[1])
    whole = Split("", split.unit, known, None, test)
    return Question(
        store,
        task,
        _thinned(known, most[0]),
        test,
        split.train,
        shared_channels(whole),
        processes,
        options.balanced,
        options.repeats,
        options.seeds,
    )


def _thinned(windows: Windows, most: int) -> Windows:
    """Return at most so many windows, spread evenly over recordings and time."""
    if len(windows) <= most:
        return windows
    order = np.lexsort((windows.start, windows.recording))
    return windows.take(np.sort(order[np.linspace(0, len(windows) - 1, most).astype(np.int64)]))


def _seen(store: Store, model: Cerebro, asked: Sequence[Question]) -> Iterator[tuple[Question, str]]:
    """Yield what must be said of tasks whose subjects the weights may have seen: those of the test, and all others.

    Cross-validation asks about subjects that heads have not seen. The encoder may have seen them.
    """
    training = model.training_record
    for question in asked:
        known = [question.known]
        found = seen_before(training.data, training.windows > 0, store.hash(), known, "training and validation")
        if found.signals or found.labels:
            yield question, f"{found.text()}; this may flatter cross-validated rows of the encoder"
        if question.test is not None:
            found = seen_before(training.data, training.windows > 0, store.hash(), [question.test], "test")
            yield question, found.text()


# The work


@dataclass
class Plan:
    """Runs the groups of methods of each task, and keeps what they answer."""

    out: Path
    options: CompareOptions
    engine: Engine
    weights: Path
    model: Cerebro
    say: Say
    show: Say

    def __post_init__(self) -> None:
        self._total = self._done = 0.0
        self._began = time.monotonic()
        self._crossed: dict[str, CrossValidation] = {}
        """What was found of features without an encoder, by task: the controls need the same."""

    def choose(
        self, asked: Sequence[Question], wanted: Sequence[str], notes: list[str]
    ) -> list[tuple[Question, dict[Group, list[Method]]]]:
        """Return each task with the methods that will run, by group, and print how long that may take."""
        gpu = self.model.channels is not None and asked[0].processes.device.type == "cuda"
        explicit = bool(self.options.methods) or self.options.everything or gpu
        chosen: list[tuple[Question, dict[Group, list[Method]]]] = []
        left_out: dict[str, float] = {}
        self._cost: dict[tuple[str, Group], float] = {}
        for question in asked:
            rows = [methods.method_of(name) for name in wanted]
            if not question.channels:
                rows = [row for row in rows if row.name in methods.ANY_MONTAGE]
                notes.append(
                    f"{question.task.task}: the windows share no channel, so methods that need fixed channels are out"
                )
            pending: dict[Group, list[Method]] = {}
            for row in rows:
                if not (self.place(question, row) / "row.json").exists():
                    pending.setdefault(row.group, []).append(row)
            if self.options.quick:
                fast = [row for row in pending.get("frozen", []) if row.readout not in methods.LEARNED]
                notes += [f"{row.name} is not part of quick" for row in pending.get("frozen", []) if row not in fast]
                pending |= {"frozen": fast} if fast else {}
            costs = costs_of(question, self.model, pending)
            for group in list(pending):
                trainings = group in ("net", "steps")
                if (trainings and not explicit) or (self.options.quick and trainings):
                    for row in pending.pop(group):
                        left_out[row.name] = left_out.get(row.name, 0.0) + costs[row.name]
                else:
                    self._cost[question.task.task, group] = sum(costs[row.name] for row in pending[group])
            chosen.append((question, pending))
        self._total = sum(self._cost.values())
        if any(pending for _, pending in chosen):
            self.say(f"{counted(len(asked), 'task')}: about {in_time(self._total)} here")
        for name, seconds in left_out.items():
            how = "" if self.options.quick else "; --everything runs it"
            notes.append(f"{name} was not run: about {in_time(seconds)} here{how}")
        return chosen

    def place(self, question: Question, method: Method) -> Path:
        """Return the folder of a method's answers to a task."""
        return method_folder(self.out, question.task.task, method.name)

    def run(self, question: Question, pending: Mapping[Group, Sequence[Method]], notes: list[str]) -> None:
        """Run the methods of a task that are not finished."""
        name = question.task.task
        for group, rows in pending.items():
            cost = self._cost[name, group]
            began = time.monotonic()
            self._tell(name, rows, 0.0, cost)
            try:
                if group == "guess":
                    self._keep(question, rows[0], methods.guess(question), 0.0)
                elif group == "frozen":
                    self._frozen(question, rows, cost, notes)
                elif group == "random":
                    self._random(question, rows, cost)
                else:
                    self._trained(question, rows, cost, notes)
            except ChannelError as error:
                notes.append(f"{name}: {', '.join(row.name for row in rows)} left out: {error}")
            self._done += cost
            shown = ", ".join(row.name for row in rows)
            self.say(f"{name}: {shown}: {in_time(time.monotonic() - began)}; {self._left(0.0)} left in all")
        self._crossed.pop(name, None)

    def _tell(self, task: str, rows: Sequence[Method], share: float, cost: float) -> None:
        named = rows[0].name + (", ..." if len(rows) > 1 else "")
        self.show(f"{task}: {named}, {share:.0%}; {self._left(share * cost)} left")

    def _left(self, now: float) -> str:
        """Return the time that is left: as estimated at first, then at the pace so far."""
        spent, done = time.monotonic() - self._began, self._done + now
        pace = spent / done if done > 0.2 * self._total else 1.0
        return in_time(max(0.0, self._total - done) * pace)

    def _frozen(self, question: Question, rows: Sequence[Method], cost: float, notes: list[str]) -> None:
        """Run simple features and those of the frozen encoder: one pass of the encoder serves all of these rows."""
        began = time.monotonic()
        readouts = [row.readout for row in rows]
        learned = any(readout in methods.LEARNED for readout in readouts)
        features = methods.simple_features(question, self.model, learned, self.show) if question.channels else None
        names = ("mean", "encoder") if question.channels else ("mean", "moments")
        if any(row.family == "ours" for row in rows):
            try:
                channels, electrodes = self._electrodes(question, notes)
                encoded = methods.encoder_features(question, self.model, channels, electrodes, names, self.show)
                features = encoded if features is None else features.beside(encoded)
            except ChannelError as error:
                notes.append(f"{question.task.task}: the encoder cannot read these channels: {error}")
                readouts = [row.readout for row in rows if row.family != "ours"]
        if features is None:
            return
        self._answer_linear(question, rows, features, readouts, cost, began)

    def _electrodes(self, question: Question, notes: list[str]) -> tuple[tuple[str, ...], Electrodes | None]:
        """Return the channels that all windows share, as the electrodes that the encoder reads them as."""
        parts = [part for part in (question.known, question.test) if part is not None]
        trained = self.model.training_record.electrode_windows
        if new := untrained_electrodes(parts, trained):
            listed = ", ".join(new[:8]) + (" ..." if len(new) > 8 else "")
            notes.append(
                f"{question.task.task}: {counted(len(new), 'electrode')} without training in these weights "
                f"(untrained={self.options.untrained!r}): {listed}"
            )
        electrodes = electrodes_of(parts, trained, self.options.untrained)
        return shared_channels(Split("", "", question.known, None, question.test), electrodes), electrodes

    def _answer_linear(
        self,
        question: Question,
        rows: Sequence[Method],
        features: methods.Features,
        readouts: Sequence[str],
        cost: float,
        began: float,
    ) -> None:
        tried: list[str] = []

        def tell(candidate: str) -> None:
            tried.append(candidate)
            self._tell(question.task.task, rows, min(0.95, 0.5 + 0.05 * len(tried)), cost)

        answers, self._crossed[question.task.task] = methods.linear_answers(question, features, readouts, tell)
        seconds = time.monotonic() - began
        for row in rows:
            if row.readout in answers:
                self._keep(question, row, answers[row.readout], seconds)

    def _random(self, question: Question, rows: Sequence[Method], cost: float) -> None:
        """Run the controls: the same read-outs of encoders that learned nothing, one for each seed."""
        began, found = time.monotonic(), dict[str, list[MethodAnswer]]()
        simple = methods.simple_features(question, self.model, False, self.show) if question.channels else None
        names = ("mean", "encoder") if question.channels else ("mean",)
        for seed, model in enumerate(methods.random_encoders(self.model, question.seeds)):
            self._tell(question.task.task, rows, seed / question.seeds, cost)
            features = methods.encoder_features(question, model, question.channels, None, names, self.show)
            features = features if simple is None else simple.beside(features)
            readouts = [row.readout for row in rows]
            before = self._crossed.get(question.task.task)
            answers, self._crossed[question.task.task] = methods.linear_answers(
                question, features, readouts, lambda name: None, before
            )
            for name, answer in answers.items():
                found.setdefault(name, []).append(answer)
        for row in rows:
            if row.readout in found:
                answer = methods.mean_over_seeds(found[row.readout])
                self._keep(question, row, answer, time.monotonic() - began)

    def _trained(self, question: Question, rows: Sequence[Method], cost: float, notes: list[str]) -> None:
        """Run small networks, and trainings of CEReBrO; each finished training is kept until its row is done."""
        for row in rows:
            began, work = time.monotonic(), self.place(question, row) / "work"
            if row.group == "net":
                train, rates = methods.net_trainer(question, row.name, self.show), methods.RATES
            else:
                _, electrodes = self._electrodes(question, notes)
                start = self.weights
                train = methods.step_trainer(question, row.name, start, self.engine, electrodes, work, self.show)
                rates = methods.STEP_RATES[row.name]

            def tell(share: float, row: Method = row) -> None:
                self._tell(question.task.task, [row], share, cost / len(rows))

            answer = methods.trained_answer(question, train, rates, work, tell)
            self._keep(question, row, answer, time.monotonic() - began)
            shutil.rmtree(work, ignore_errors=True)

    def _keep(self, question: Question, method: Method, answer: MethodAnswer, seconds: float) -> None:
        """Write what a method answered; ``row.json`` comes last, and says that the row is finished."""
        folder = self.place(question, method)
        folder.mkdir(parents=True, exist_ok=True)
        begin_sums(folder)
        heat = 1.0
        if question.known.target is None:
            heat = temperature(answer.held_out_BK, question.known.label)
        to_predictions(question.store, question.known, answer.held_out_BK / np.float32(heat)).save(folder / "cv.npz")
        for seed, output_BK in enumerate(answer.test_BK):
            assert question.test is not None
            found = to_predictions(question.store, question.test, output_BK / np.float32(heat))
            self._log(question, method, seed)
            found.save(folder / f"test-{seed}.npz")
        row = {
            "format": 1,
            "name": method.name,
            "family": method.family,
            "about": method.about,
            "score": answer.score,
            "settings": answer.settings,
            "chosen": dict(answer.chosen),
            "temperature": heat,
            "seeds": len(answer.test_BK),
            "seconds": round(seconds, 1),
        }
        write_text(folder / "row.json", json.dumps(row, indent=2, allow_nan=False) + "\n")

    def _log(self, question: Question, method: Method, seed: int) -> None:
        """Append a line on a test split that is about to be scored."""
        assert question.test is not None
        line = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "task": question.task.task,
            "method": method.name,
            "seed": seed,
            "windows": len(question.test),
        }
        with (self.out / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        add_sum(self.out / LOG)


def method_folder(out: Path, task: str, method: str) -> Path:
    """Return the folder of a comparison that holds a method's answers to a task."""
    return out / f"task-{_plain(task)}" / f"method-{_plain(method)}"


def _plain(name: str) -> str:
    """Return a name as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


# The table


def _table(out: Path, question: Question, options: CompareOptions) -> TaskTable | None:
    """Return the table of a task from the answers that are kept."""
    rows = []
    for path in sorted((out / f"task-{_plain(question.task.task)}").glob("method-*/row.json")):
        try:
            found = parse_json(path.read_text(encoding="utf-8"))
            held_out = Predictions.load(path.parent / "cv.npz")
            tests = [Predictions.load(path.parent / f"test-{seed}.npz") for seed in range(found["seeds"])]
            rows.append(Row(found, held_out, tuple(tests), _times(out, question.task.task, found["name"])))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"the answers of {path.parent.name} to {question.task.task} are damaged; delete them and run again"
            ) from error
    order = {method.name: place for place, method in enumerate(METHODS)}
    rows.sort(key=lambda row: order.get(row.record["name"], 6))  # networks of braindecode follow EEGNet
    return summarise_task(question.task, rows, resamples=options.resamples) if rows else None


def _times(out: Path, task: str, method: str) -> int:
    """Return how often a method was scored on the test split, by the log; seeds count once."""
    try:
        lines = [parse_json(line) for line in (out / LOG).read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return 0
    except (OSError, ValueError):
        raise ConfigError(f"{LOG} of {out} is damaged; bring it back from a copy") from None
    of_seeds: dict[int, int] = {}
    for line in lines:
        if line["task"] == task and line["method"] == method:
            of_seeds[line["seed"]] = of_seeds.get(line["seed"], 0) + 1
    return max(of_seeds.values(), default=0)
