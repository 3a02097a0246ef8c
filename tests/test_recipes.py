"""The recipes: their data say what the paper says, they run from end to end, go on, and leak no test subject."""

import csv
import dataclasses
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tuh_files import write_tuab, write_tueg, write_tusl

RECIPES = Path(__file__).parents[1] / "recipes"
TABLES = "representation patching attention attention_kinds phase tuab seed neonate mobi".split()
FIGURES = {"figure_sizes": "alternating-large", "figure_kinds": "alternating"}
CHEAP = ("mobi", "labram_memory")


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RECIPES))


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.parametrize("name", TABLES)
def test_the_header_and_the_data_say_the_same(name):
    module = load(name)
    lines = [" ".join(line.split()) for line in module.__doc__.splitlines()]
    for row in module.TABLE.rows:
        assert len(row.paper) == sum(not metric.again for metric in module.TABLE.metrics)
        assert any(line.startswith(row.labels[0]) and line.endswith(" ".join(row.paper)) for line in lines), row
    assert module.TABLE.name == name
    assert f"python recipes/{name}.py --mini" in lines


def test_a_model_in_two_tables_has_one_number_in_the_paper():
    """The tables on representation and patching are of standard attention: their rows return in those on attention."""
    tables = [load(name).TABLE for name in ("representation", "patching", "attention", "attention_kinds")]
    found: dict[str, set[tuple[str, ...]]] = {}
    for table in tables:
        for row in table.rows:
            found.setdefault(row.name, set()).add(row.paper)
    assert {name: papers for name, papers in found.items() if len(papers) > 1} == {}
    assert len(found) == 14 < sum(len(table.rows) for table in tables) == 22


@pytest.mark.parametrize("name", FIGURES)
def test_curves_give_the_ratios_that_the_paper_states(name):
    """More than twice as fast at the greatest length that standard attention reached, and 5 or 6 times less memory."""
    module, figures = load(name), load("figures")
    fast = FIGURES[name]
    slow = fast.replace("alternating", "standard")
    for heading, ratio in (("runtime, ms", 2.0), ("memory, MB", 6.0)):
        curves = figures.read_curves(module.__doc__, heading)
        assert set(curves) == {model.name for model in module.MODELS}
        assert list(curves[fast]) == [64 * channels for channels in range(1, 65, 4)]
        last = max(tokens for tokens, text in curves[slow].items() if text != "-")
        assert last == (3904 if name == "figure_sizes" else 3392)
        assert float(curves[slow][last]) / float(curves[fast][last]) > ratio


def test_numbers_stand_beside_the_papers_only_where_they_compare(tmp_path):
    tables, table = load("tables"), load("phase").TABLE
    values = {"balanced_accuracy": {"mean": 0.5, "std": 0.25, "std_over_folds": None}}
    measured = [tables.read_scores(table, {"levels": {"window": {"values": values}}})] * 3
    assert measured[0] == ("50.00 ± 25.00",)
    head, rows = tables.lay_out(table, measured, with_paper=True)
    assert head == ["spectrogram", "balanced accuracy %", "paper"]
    assert rows[0] == ("magnitude", "50.00 ± 25.00", "77.01")
    head, rows = tables.lay_out(table, measured, with_paper=False)
    assert "77.01" not in str(rows)
    assert load("tables").AUPR_MACRO.show(None, None) == "n/a"


def test_both_kinds_of_aupr_stand_beside_the_column_that_the_paper_does_not_define():
    tables, table = load("tables"), load("tuab").TABLE
    values = {key: {"mean": mean, "std": None} for key, mean in (("balanced_accuracy", 0.5), ("aupr_positive", 0.75))}
    measured = [
        tables.read_scores(table, {"levels": {"window": {"values": {**values, "auroc": values["aupr_positive"]}}}})
    ]
    assert measured == [("50.00", "n/a", "0.7500", "0.7500")]  # an earlier release did not score the mean
    head, rows = tables.lay_out(table, measured * 3, with_paper=True)
    assert [name for name in head if name != "paper"][2:4] == ["AUPR (macro)", "AUPR (positive class)"]
    assert rows[0][1:] == (
        "50.00",
        "79.40 ± 0.19",
        "n/a",
        "0.8763 ± 0.0031",
        "0.7500",
        "0.8763 ± 0.0031",
        "0.7500",
        "0.8749 ± 0.0033",
    )


def run_mini(name: str, out: Path) -> str:
    command = [sys.executable, "-W", "error", str(RECIPES / f"{name}.py"), "--mini", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def check_mini(name: str, out: Path) -> None:
    said = run_mini(name, out)
    assert "large: depth 4, width 32, 4 heads" in said
    assert "they compare with nothing" in said
    module = load(name)
    if name in TABLES:
        with (out / "tables" / f"{name}-mini.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
        assert rows[0] == [*module.TABLE.columns, *(metric.title for metric in module.TABLE.metrics)]
        assert [tuple(row[: len(module.TABLE.columns)]) for row in rows[1:]] == [r.labels for r in module.TABLE.rows]
        assert not [row.paper for row in module.TABLE.rows if any(number in said for number in row.paper)]
        assert "n/a" not in said
    elif name in FIGURES:
        assert (out / "figures" / f"{name}-64-mini.png").stat().st_size > 10_000
        assert (out / "figures" / f"{name}-20-mini-memory.csv").exists()
    else:
        assert said.count("not run") == 4  # LaBraM's three rows, and the line that says so


@pytest.mark.parametrize("name", CHEAP)
def test_mini(name, tmp_path):
    check_mini(name, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted({*TABLES, *FIGURES, "labram_memory"} - set(CHEAP)))
def test_every_mini(name, tmp_path):
    check_mini(name, tmp_path)


def test_the_same_call_goes_on_and_scores_nothing_again(tmp_path):
    common, mini, table = load("common"), load("mini"), load("tuab").TABLE
    table = dataclasses.replace(table, rows=table.rows[:1])
    stores = {name: tmp_path / name for name in ("tueg", "tuab")}
    for place, (name, folder) in enumerate(stores.items()):
        mini.simulate_store(folder, name, table.task, place)
        mini.simulate_store(folder, name, table.task, place)  # finds what is there
    scale, said = common.Scale(mini=True, seeds=2, device="cpu"), []
    first = common.reproduce(table, stores, tmp_path / "out", scale, said.append)
    assert sum(line.startswith("scored ") for line in said) == 2
    said.clear()
    assert common.reproduce(table, stores, tmp_path / "out", scale, said.append) == first
    assert not [line for line in said if line.startswith("scored ")]
    assert [len(row) for row in first] == [4]


def test_a_corpus_is_prepared_and_tueg_without_the_subjects_of_tuab(tmp_path):
    common = load("common")
    from cerebro_eeg.data.storing.store import Store

    tuab, tueg = write_tuab(tmp_path / "tuab"), write_tueg(tmp_path / "tueg")

    def prepared(name: str, folder: Path, tuab: Path | None, out: str) -> Path:
        return common._prepared(name, folder, tuab, tmp_path / out, lambda line: None, workers=0)

    stores = {name: prepared(name, folder, tuab, "out") for name, folder in (("tuab", tuab), ("tueg", tueg))}
    assert {record.subject for record in Store(stores["tueg"]).recordings} == {"aaaaaalr"}
    again = prepared("tueg", tueg, stores["tuab"], "again")
    assert Store(again).hash() == Store(stores["tueg"]).hash()
    assert prepared("tueg", stores["tueg"], None, "not made") == stores["tueg"]
    tusl = prepared("tusl", write_tusl(tmp_path / "tusl"), tuab, "out")
    assert common.shared_subjects(stores["tuab"], "abnormal", "test", [stores["tueg"], tusl]) == {"aaaaaaju"}
    table, scale = load("attention").TABLE, common.Scale()
    given = {"tuab": stores["tuab"], "tusl": tusl, "tusz": stores["tueg"], "tuep": stores["tueg"]}
    assert common._to_leave_out(table, given, scale) == (f"{stores['tuab']}:abnormal:test",)
    assert common._to_leave_out(table, given, dataclasses.replace(scale, paper=True)) == ()
    assert common._to_leave_out(table, given | {"tusl": stores["tueg"]}, scale) == ()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--out not given"),
        (["--out", "x", "--tuab", "y"], "--tusl, --tusz, --tuep not given; name the folder of each corpus"),
    ],
)
def test_what_is_missing_is_said_in_one_line(arguments, words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    module, common = load("attention"), load("common")
    assert common.main(module.TABLE, module.__doc__, arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert words in said.err
    assert said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_tueg_is_not_prepared_without_knowing_whom_to_leave_out(tmp_path):
    from cerebro_eeg.errors import ConfigError

    with pytest.raises(ConfigError, match="say --tuab, too"):
        load("common")._prepared("tueg", tmp_path, None, tmp_path / "out", lambda line: None)


def test_every_recipe_is_in_the_readme():
    text = (RECIPES / "README.md").read_text(encoding="utf-8")
    scripts = {
        path.stem for path in RECIPES.glob("*.py") if "--mini" in path.read_text(encoding="utf-8").split('"""')[1]
    }
    assert scripts == {*TABLES, *FIGURES, "labram_memory"}
    assert [name for name in sorted(scripts) if f"`{name}.py`" not in text] == []
