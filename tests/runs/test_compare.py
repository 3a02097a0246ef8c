"""compare: the same windows for all, choices without the test split, one scoring that is counted, and exact resume."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import train_stores
from cerebro_eeg import Cerebro
from cerebro_eeg.cli import main
from cerebro_eeg.config import Training
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.report.verdicts import of_task
from cerebro_eeg.runs import compare as runs
from cerebro_eeg.runs import compare_methods, finetune
from cerebro_eeg.runs.compare import CompareOptions, compare
from cerebro_eeg.runs.compare_methods import BY_NAME, METHODS
from cerebro_eeg.runs.compare_result import table_lines
from cerebro_eeg.runs.compare_summary import overall, sentence, state_of
from cerebro_eeg.runs.evaluate import evaluate
from cerebro_eeg.runs.provenance import describe_source
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.windows import find_splits, read_task
from cerebro_eeg.scores.paired import Paired, difference, draw_scores
from cerebro_eeg.scores.predictions import Predictions
from train_stores import make_store
from train_worker import MODEL, preset

ENGINE = Engine(device="cpu", threads=1)
LINEAR = [method.name for method in METHODS if method.group in ("guess", "frozen", "random")]
QUICK = [name for name in LINEAR if BY_NAME[name].readout not in compare_methods.LEARNED]
CHEAP = ("chance", "band power", "mean, frozen", "default")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare") / "store"
    with pytest.MonkeyPatch.context() as patch:  # rivals need channels that all windows share
        patch.setattr(train_stores, "MONTAGES", [("Fp1", "Cz", "O1")])
        make_store(folder, subjects=36, seconds=8)
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare-weights") / "model"
    with torch.random.fork_rng():
        torch.manual_seed(0)  # so that scores do not depend on the tests that ran before
        model = Cerebro(config=MODEL)
    model.training_record = Training(1, 64, {"Fp1": 64, "Cz": 64, "O1": 64})
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def whole(store, weights, tmp_path_factory):
    out = tmp_path_factory.mktemp("compare-whole") / "out"
    return compare(store, out, options("third", seeds=2), ENGINE, weights)


def options(*tasks, **changes):
    return CompareOptions(**{"tasks": tasks, "repeats": 1, "seeds": 1, "resamples": 200, **changes})


def rows_of(found, task=0):
    return {row["name"]: row for row in found.tables[task]["rows"]}


def files_of(folder):
    return {path: path.read_bytes() for path in sorted(Path(folder).glob("task-*/**/*")) if path.is_file()}


# The table


def test_every_method_that_trains_nothing_by_steps_answers_the_same_windows(whole, store):
    assert [row["name"] for row in whole.tables[0]["rows"]] == LINEAR
    opened = Store(store)
    (split,) = find_splits(opened, read_task(opened, "third", None, None, None))
    for path in Path(whole.folder).glob("task-third/method-*"):
        test, held_out = Predictions.load(path / "test-0.npz"), Predictions.load(path / "cv.npz")
        np.testing.assert_array_equal(test.truth, split.test.label)
        assert len(held_out) == len(split.train) + len(split.validation)
        assert not set(test.subject) & set(held_out.subject)
    rows = rows_of(whole)
    assert rows["hybrid, random weights"]["seeds"] == 2  # each draw of random weights is scored
    assert rows["hybrid, frozen"]["seeds"] == 1
    assert rows["chance"]["test"]["value"] == 0.5
    settings = {name: row["settings"] for name, row in rows.items()}
    linear = {
        settings[name] for name in ("band power", "power and covariance", "mean, frozen", "encoder, random weights")
    }
    assert linear == {10}
    assert settings["hybrid, frozen"] == settings["hybrid, random weights"] == 28  # both parts, and four weights
    assert settings["with narrow bands"] == 46


def test_our_default_is_what_finetune_freeze_saves(store, weights, tmp_path):
    found = compare(store, tmp_path / "out", options("third", methods=("default",)), ENGINE, weights)
    choices = finetune.FinetuneOptions("third", freeze=True, readout="auto")
    finetune.finetune(store, tmp_path / "run", preset({}), choices, ENGINE, weights)
    scored = evaluate(tmp_path / "run", store, device="cpu", rivals=False)
    probe = json.loads((tmp_path / "run" / "seed-0" / "probe.json").read_text())
    row = rows_of(found)["default"]
    assert (row["chosen"]["readout"], row["chosen"]["centred"]) == (probe["name"], probe["centred"])
    assert row["score"] == pytest.approx(probe["score"], abs=1e-6)
    auroc = scored.summary["levels"]["window"]["values"]["auroc"]["mean"]
    assert row["test"]["value"] == pytest.approx(auroc, abs=0.01)  # temperature moves the shares of three classes


def test_labels_without_a_meaning_give_chance(store, weights, tmp_path, monkeypatch):
    shuffled = runs._question

    def question(*given):
        asked = shuffled(*given)
        label = np.random.default_rng(0).permutation(asked.known.label)
        return replace(asked, known=replace(asked.known, label=label))

    monkeypatch.setattr(runs, "_question", question)
    found = compare(store, tmp_path / "out", options("alpha", test=False), ENGINE, weights)
    for name, row in rows_of(found).items():
        assert 0.4 < row["cv"]["value"] < 0.6, name


def test_values_have_r2_and_folds_have_cross_validation_alone(store, weights, tmp_path):
    found = compare(store, tmp_path / "out", options("level", "folded", methods=CHEAP), ENGINE, weights)
    level, folded = rows_of(found, 0), rows_of(found, 1)
    assert found.tables[0]["metric"] == "r2"
    assert level["chance"]["cv"]["value"] == pytest.approx(0.0, abs=1e-6)
    assert level["band power"]["test"]["value"] > 0.3
    assert found.tables[1]["test"] is None
    assert folded["band power"]["cv"]["value"] > 0.9
    assert folded["band power"]["test"] is None
    assert found.tables[1]["known"]["subjects"] == 36  # every fold is there to learn from


def test_windows_that_share_no_channel_leave_rows_out_and_say_so(weights, tmp_path):
    make_store(tmp_path / "store", subjects=12, seconds=8)
    model = Cerebro.from_pretrained(weights)
    names = {name for names in train_stores.MONTAGES for pair in names for name in pair.split("-")}
    model.training_record = Training(1, 64, dict.fromkeys(names, 64))
    model.save_pretrained(tmp_path / "weights")
    found = compare(tmp_path / "store", tmp_path / "out", options("alpha"), ENGINE, tmp_path / "weights")
    assert list(rows_of(found)) == ["chance", "mean, random weights", "mean, frozen", "default"]
    assert any("share no channel" in note for note in found.notes)
    assert rows_of(found)["default"]["chosen"]["readout"] in ("mean", "moments")
    assert found.tables[0]["verdict"] is None


def test_new_electrodes_are_said_and_simple_rivals_do_not_need_them(store, weights, tmp_path):
    model = Cerebro.from_pretrained(weights)
    model.training_record = Training(1, 64, {"Fp1": 64, "Cz": 64})
    model.save_pretrained(tmp_path / "weights")
    asked = options("alpha", methods=("band power", "mean, frozen", "default"), untrained="error")
    found = compare(store, tmp_path / "error", asked, ENGINE, tmp_path / "weights")
    assert list(rows_of(found)) == ["band power"]
    assert any("the encoder cannot read these channels" in note and "O1" in note for note in found.notes)
    nearest = compare(store, tmp_path / "drop", replace(asked, untrained="drop"), ENGINE, tmp_path / "weights")
    assert list(rows_of(nearest)) == ["band power", "mean, frozen", "default"]
    assert any("1 electrode without training" in note for note in nearest.notes)


# Trainings


@pytest.mark.parametrize("name", ["EEGNet", "from scratch", "adapters", "fine-tuned"])
def test_trainings_are_rows_like_any_other(store, weights, tmp_path, monkeypatch, name):
    monkeypatch.setattr(compare_methods, "RATES", (1e-3,))
    monkeypatch.setattr(compare_methods, "NET_EPOCHS", 2)
    monkeypatch.setattr(compare_methods, "STEP_RATES", dict.fromkeys(compare_methods.STEP_RATES, (1e-3,)))
    monkeypatch.setattr(compare_methods, "EPOCHS", {"from scratch": 2, "fine-tuned": 2})
    monkeypatch.setattr(compare_methods, "STEPS", {"adapters": 3})
    found = compare(store, tmp_path / "out", options("alpha", methods=(name, "default"), seeds=2), ENGINE, weights)
    row = rows_of(found)[name]
    assert (row["settings"], row["seeds"], row["chosen"]["rate"]) == (2, 2, 1e-3)
    assert row["minus"]["test"]["difference"] == pytest.approx(
        rows_of(found)["default"]["test"]["value"] - row["test"]["value"]
    )
    (folder,) = [path for path in Path(found.folder).glob("task-alpha/method-*") if "default" not in path.name]
    tests = [Predictions.load(folder / f"test-{seed}.npz").output for seed in (0, 1)]
    assert not np.array_equal(*tests)  # seeds differ
    assert not (folder / "work").exists()


def test_a_training_that_is_stopped_goes_on_behind_what_is_kept(store, weights, tmp_path, monkeypatch):
    monkeypatch.setattr(compare_methods, "RATES", (1e-3,))
    monkeypatch.setattr(compare_methods, "NET_EPOCHS", 1)
    asked, fit, calls = options("alpha", methods=("EEGNet",)), compare_methods.train_net, []
    unbroken = compare(store, tmp_path / "unbroken", asked, ENGINE, weights)

    def dies(*given, **named):
        calls.append(named["seed"])
        if len(calls) == 4:
            raise KeyboardInterrupt
        return fit(*given, **named)

    monkeypatch.setattr(compare_methods, "train_net", dies)
    with pytest.raises(KeyboardInterrupt):
        compare(store, tmp_path / "out", asked, ENGINE, weights)
    found = compare(store, tmp_path / "out", asked, ENGINE, weights)
    assert len(calls) == 7  # 5 folds and the last training; the one that died was made again
    assert rows_of(found)["EEGNet"]["cv"] == rows_of(unbroken)["EEGNet"]["cv"]
    assert rows_of(found)["EEGNet"]["test"] == rows_of(unbroken)["EEGNet"]["test"]


# Once, and again


def test_methods_can_be_added_and_what_is_finished_stays_as_it_is(store, weights, tmp_path):
    out = tmp_path / "out"
    first = compare(store, out, options("alpha", methods=CHEAP), ENGINE, weights)
    kept = files_of(out)
    second = compare(store, out, options("alpha", "third", methods=(*CHEAP, "power and covariance")), ENGINE, weights)
    assert {path: text for path, text in files_of(out).items() if path in kept} == kept
    assert list(rows_of(second)) == ["chance", "band power", "power and covariance", "mean, frozen", "default"]
    assert rows_of(second)["default"]["test"] == rows_of(first)["default"]["test"]
    log = [json.loads(line) for line in (out / runs.LOG).read_text().splitlines()]
    assert sorted((line["task"], line["method"]) for line in log) == sorted(
        [
            *(("alpha", name) for name in (*CHEAP, "power and covariance")),
            *(("third", n) for n in (*CHEAP, "power and covariance")),
        ]
    )
    with pytest.raises(ConfigError, match="repeats was 1 and is now 2"):
        compare(store, out, options("alpha", repeats=2), ENGINE, weights)


def test_a_row_that_is_deleted_is_scored_again_and_the_table_tells(store, weights, tmp_path):
    out = tmp_path / "out"
    compare(store, out, options("alpha", methods=("band power",)), ENGINE, weights)
    (out / "task-alpha" / "method-band-power" / "row.json").unlink()
    again = compare(store, out, options("alpha", methods=("band power",)), ENGINE, weights)
    assert rows_of(again)["band power"]["scorings"] == 2
    assert "scored on the test split more than once, by the log: band power" in again.text()


def test_without_the_test_split_nothing_is_logged(store, weights, tmp_path):
    found = compare(store, tmp_path / "out", options("alpha", methods=CHEAP, test=False), ENGINE, weights)
    assert not (tmp_path / "out" / runs.LOG).exists()
    assert not list((tmp_path / "out").glob("**/test-*"))
    assert found.tables[0]["verdict"]["on"] == "cv"
    assert "cross-validated subjects" in found.text()


def test_subjects_that_the_encoder_has_seen_are_said_also_of_cross_validation(store, tmp_path):
    opened = Store(store)
    (split,) = find_splits(opened, read_task(opened, "alpha", None, None, None))
    model = Cerebro(config=MODEL)
    source = describe_source(opened, split.train, opened.hash())
    model.training_record = Training(1, 64, {"Fp1": 64, "Cz": 64, "O1": 64}, (source,))
    model.save_pretrained(tmp_path / "model")
    asked = options("alpha", methods=("chance", "mean, frozen"), test=False)
    notes = compare(store, tmp_path / "out", asked, ENGINE, tmp_path / "model").notes
    seen, known = (len(np.unique(part.subject)) for part in (split.train, split.train.joined(split.validation)))
    wanted = f"alpha: {seen} of {known} training and validation subjects were in the pre-training data"
    (note,) = [note for note in notes if "pre-training data" in note]
    assert note.startswith(wanted)
    assert note.endswith("may flatter cross-validated rows of the encoder")


def test_verify_checks_every_file_of_a_comparison(store, weights, tmp_path, capsys):
    out = tmp_path / "out"
    compare(store, out, options("alpha", methods=CHEAP), ENGINE, weights)
    assert main(["verify", str(out)]) == 0
    assert "no sum" not in capsys.readouterr().out
    path = out / "task-alpha" / "method-default" / "test-0.npz"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert main(["verify", str(out)]) == 9
    assert "task-alpha/method-default/test-0.npz" in capsys.readouterr().out


# What cannot be compared


def test_a_task_with_two_subjects_is_named(weights, tmp_path, monkeypatch):
    monkeypatch.setattr(train_stores, "MONTAGES", [("Fp1", "Cz", "O1")])
    make_store(tmp_path / "store", subjects=2, seconds=8)
    with pytest.raises(InputError, match="2 subjects to learn from, and a choice needs 3"):
        compare(tmp_path / "store", tmp_path / "out", options("alpha"), ENGINE, weights)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--methods", "band pwer"), "expected some of chance, band power"),
        (("--methods", "braindecode:NoSuchNet"), "braindecode"),
        (("--tasks", "eyes"), "no task 'eyes'; its tasks are: alpha"),
        (("--quick", "--everything"), "say one"),
        (("--repeats", "0"), "at least 1"),
        (("--resamples", "10"), "at least 100"),
        (("--from", "nothing"), "no checkpoint nothing"),
    ],
)
def test_a_mistake_is_one_line(store, weights, tmp_path, capsys, flags, words):
    start = () if "--from" in flags else ("--from", str(weights))
    code = main(["compare", str(store), "--out", str(tmp_path / "out"), "--device", "cpu", *start, *flags])
    said = capsys.readouterr().err
    assert code in (2, 3, 4)
    assert words in said
    assert "Traceback" not in said
    assert not list(tmp_path.glob("out/task-*"))


def test_damaged_answers_are_named(store, weights, tmp_path):
    out, asked = tmp_path / "out", options("alpha", methods=CHEAP)
    compare(store, out, asked, ENGINE, weights)
    (out / "task-alpha" / "method-band-power" / "cv.npz").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="the answers of method-band-power to alpha are damaged"):
        compare(store, out, asked, ENGINE, weights)


# Verdicts


def test_a_verdict_needs_nine_of_ten_draws_and_six_subjects():
    def found(above, subjects=12, gap=0.02):
        below = None if above is None else round(0.98 - above, 6)  # 2 % of the draws are ties
        return Paired("auroc", subjects, 0.8 + gap, 0.8, gap, None if above is None else -0.01, 0.05, above, below)

    states = [state_of(found(above)) for above in (0.95, 0.9, 0.5, 0.09, 0.08)]
    assert states == ["wins", "wins", "tied", "tied", "loses"]
    assert state_of(found(None, 3)) == "ahead"
    assert state_of(found(None, 3, -0.02)) == "behind"
    assert "too few for an interval" in sentence(found(None, 3), "band power", "test")
    assert sentence(found(0.05, gap=-0.03), "band power", "test").startswith("band power wins: our default is 0.030")


def test_equal_answers_are_a_tie_and_not_a_defeat(whole):
    tests = [Predictions.load(Path(whole.folder) / "task-third" / "method-band-power" / "test-0.npz")]
    same = draw_scores(tests, "auroc")
    found = difference(same, same)
    assert (found.difference, found.above, found.below) == (0.0, 0.0, 0.0)
    assert state_of(found) == "tied"


def test_the_whole_counts_tasks_and_means_of_methods_that_answered_all(whole):
    tables = [type("Table", (), table)() for table in whole.tables]
    found = overall(tables)
    assert (found.judged, found.tasks) == (1, ("third",))
    assert found.not_beaten + sum("loses" in str(table["verdict"]) for table in whole.tables) >= 1
    rows = rows_of(whole)
    assert found.means["default"] == {"cv": rows["default"]["cv"]["value"], "test": rows["default"]["test"]["value"]}
    lines = table_lines(whole.tables[0])
    assert any(line.split()[0] == "default" for line in lines)
    assert lines[-1].strip() == whole.tables[0]["verdict"]["text"]


def test_the_page_has_the_verdict_a_picture_and_every_row(store, weights, tmp_path, capsys):
    out = tmp_path / "out"
    flags = ["--tasks", "alpha", "--methods", *CHEAP, "--repeats", "1", "--seeds", "1", "--device", "cpu"]
    assert main(["compare", str(store), "--from", str(weights), "--out", str(out), *flags, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    page = (out / "report.html").read_text()
    assert of_task(said["tables"][0], "AUROC").sentence in page
    assert "data:image/svg+xml" in page
    with (out / "compare.csv").open(newline="") as file:
        lines = {line["method"]: line for line in csv.DictReader(file)}
    row = next(row for row in said["tables"][0]["rows"] if row["name"] == "band power")
    assert float(lines["band power"]["test"]) == row["test"]["value"]
    assert float(lines["band power"]["minus_difference"]) == row["minus"]["test"]["difference"]
    assert lines["default"]["minus_low"] == ""
    for name in CHEAP:
        assert f"<td>{name}</td>" in page
    assert set(BY_NAME) >= set(CHEAP)


def test_quick_needs_no_training_and_thins_windows_out(store, weights, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "QUICK_KNOWN", 60)
    monkeypatch.setattr(runs, "QUICK_TEST", 24)
    found = compare(store, tmp_path / "out", options("alpha", quick=True), ENGINE, weights)
    assert found.tables[0]["known"]["windows"] == 60
    assert found.tables[0]["known"]["subjects"] == 30  # every subject stays
    assert found.tables[0]["test"] == {"windows": 24, "subjects": 6}
    assert [row["name"] for row in found.tables[0]["rows"]] == QUICK
    assert any(note.startswith("EEGNet was not run: about ") for note in found.notes)
    assert "band head is not part of quick" in found.notes
