"""The result of ``compare`` as text for people and JSON for programs.

The command line resolves the types of a verb before it runs, so this module loads neither torch nor NumPy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cerebro_eeg.notebook import InFolder, by_column
from cerebro_eeg.progress import counted, in_time

TITLES = {"auroc": "AUROC", "r2": "R2"}
_NAME, _CELL, _DIFFERENCE = 24, 24, 29


@dataclass(frozen=True, repr=False)
class CompareResult(InFolder):
    """The tables of all tasks, and what holds over them."""

    folder: str
    tables: tuple[Mapping[str, Any], ...]
    """One for each task, as ``compare_summary.TaskTable`` describes it."""
    overall: Mapping[str, Any]
    """Means over tasks, and how often our default wins (``compare_summary.Overall``)."""
    notes: tuple[str, ...]
    """What was left out, and what must be known about channels and subjects."""
    about: Mapping[str, Any]
    """Store, weights and settings."""
    seconds: float = field(compare=False, default=0.0)

    def to_dict(self) -> dict[str, object]:
        return {**vars(self), "tables": list(self.tables), "notes": list(self.notes)}

    def text(self) -> str:
        lines: list[str] = []
        for table in self.tables:
            lines += [*table_lines(table), ""]
        lines += overall_lines(self.overall)
        lines += [f"note: {note}" for note in self.notes]
        lines += [
            "brackets: 95 % over subjects; cross-validated scores chose the settings, so they flatter a little",
            f"to look at: {self.folder}/report.html; predictions by recording and test-log.jsonl lie beside it",
            f"time  {in_time(self.seconds)}",
        ]
        return "\n".join(lines)

    def _headline(self) -> str:
        tasks = ", ".join(table["task"] for table in self.tables)
        return f"{tasks} in {self.folder}: {overall_sentence(self.overall)}"

    def _facts(self) -> Mapping[str, object]:
        return {"report": f"{self.folder}/report.html", "time": in_time(self.seconds)}

    def _columns(self) -> Mapping[str, Sequence[Any]]:
        """Return one row per task and method; "minus" is our default minus the method."""
        return by_column(
            {
                "task": table["task"],
                "method": row["name"],
                "metric": table["metric"],
                **_estimate("cv", row["cv"]),
                **_estimate("test", row["test"]),
                **_estimate("minus", row["minus"]["test"] or row["minus"]["cv"], "difference"),
                "settings": row["settings"],
            }
            for table in self.tables
            for row in table["rows"]
        )

    def _notes(self) -> Sequence[str]:
        verdicts = [table["verdict"]["text"] for table in self.tables if table["verdict"] is not None]
        return [*verdicts, *self.notes]


def _estimate(name: str, found: Mapping[str, Any] | None, value: str = "value") -> dict[str, float | None]:
    of = found or {}
    return {name: of.get(value), f"{name}_low": of.get("low"), f"{name}_high": of.get("high")}


def table_lines(table: Mapping[str, Any]) -> list[str]:
    """Return the table of a task as lines of text, with the sentence on who wins."""
    known, test = table["known"], table["test"]
    tested = (
        "no test split"
        if test is None
        else f"tested on {counted(test['windows'], 'window')} of {counted(test['subjects'], 'subject')}"
    )
    lines = [
        f"{table['task']}: {', '.join(table['names'])}; {TITLES[table['metric']]} by window; learned from "
        f"{counted(known['windows'], 'window')} of {counted(known['subjects'], 'subject')}, {tested}",
        f"  {'':<{_NAME}} {'cross-validated':<{_CELL}} {'test':<{_CELL}} {'default minus it':<{_DIFFERENCE}} settings",
    ]
    for row in table["rows"]:
        minus = row["minus"]["test"] or row["minus"]["cv"]
        cells = [estimate_words(row["cv"]), estimate_words(row["test"]), difference_words(minus)]
        words = f"{cells[0]:<{_CELL}} {cells[1]:<{_CELL}} {cells[2]:<{_DIFFERENCE}} {row['settings'] or '':>8}"
        lines.append(f"  {row['name']:<{_NAME}} {words}".rstrip())
    lines += [f"  {chosen_words(row)}" for row in table["rows"] if row["name"] == "default"]
    twice = [row["name"] for row in table["rows"] if row["scorings"] > 1]
    if twice:
        lines.append(f"  scored on the test split more than once, by the log: {', '.join(twice)}")
    for row in table["rows"]:
        if row["test"] is not None and "by_subject" in row["test"] and row["name"] == "default":
            each = [_number(one["value"]) or "n/a" for one in row["test"]["by_subject"]]
            lines.append(f"  default by test subject: {', '.join(each)}; fewer than six allow no interval")
    if table["verdict"] is not None:
        lines.append(f"  {table['verdict']['text']}")
    return lines


def overall_lines(overall: Mapping[str, Any]) -> list[str]:
    """Return the means over tasks as lines of text, and how often our default wins."""
    tasks = overall["tasks"]
    lines = []
    if len(tasks) > 1:
        lines.append(f"mean over {len(tasks)} tasks with classes ({', '.join(tasks)})")
        lines.append(f"  {'':<{_NAME}} {'cross-validated':<{_CELL}} test")
        for name, of in overall["means"].items():
            lines.append(f"  {name:<{_NAME}} {_number(of['cv']):<{_CELL}} {_number(of['test'])}".rstrip())
    return [*lines, f"  {overall_sentence(overall)}"]


def overall_sentence(overall: Mapping[str, Any]) -> str:
    """Return one sentence on how our default stands beside simple features on the test splits."""
    judged = overall["judged"]
    if not judged:
        return "no task has the six test subjects that a verdict needs"
    return (
        f"no simple rival beats our default on {overall['not_beaten']} of {counted(judged, 'task')} with six or more "
        f"test subjects, and it beats all of them on {overall['wins']}"
    )


def chosen_words(row: Mapping[str, Any]) -> str:
    """Return what cross-validation chose for our default."""
    chosen = row["chosen"]
    weight = f", weight {chosen['weight']:g} for {chosen['of']}" if "of" in chosen else ""
    centred = ", features centred per subject" if chosen.get("centred") else ""
    return f"our default is {chosen['readout']}{weight}{centred}"


def estimate_words(found: Mapping[str, Any] | None) -> str:
    """Return a score with its interval, as .868 (.800-.920)."""
    if found is None:
        return ""
    if found["low"] is None:
        return _number(found["value"])
    return f"{_number(found['value'])} ({_number(found['low'])} to {_number(found['high'])})"


def difference_words(found: Mapping[str, Any] | None) -> str:
    """Return a difference with its interval, and whether nine of ten draws agree on its sign."""
    if found is None:
        return ""
    if found["low"] is None:
        return f"{found['difference']:+.3f}"
    sure = " *" if max(found["above"], found["below"]) >= 0.9 else ""
    return f"{found['difference']:+.3f} ({found['low']:+.3f} to {found['high']:+.3f}){sure}"


def names_of(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of all methods, in the order of the tables."""
    return list(dict.fromkeys(row["name"] for table in tables for row in table["rows"]))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
