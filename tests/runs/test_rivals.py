"""Rivals: simple features on the windows of a run, who wins in a sentence, and a comparison that is made once."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import train_stores
from cerebro_eeg import cli
from cerebro_eeg.config import FinetuneConfig, ObjectiveConfig, Preset, PretrainConfig
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ChannelError, ConfigError
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.readouts import width_of
from cerebro_eeg.runs import finetune, readout_choice, rivals
from cerebro_eeg.runs.embed import embed
from cerebro_eeg.runs.evaluate import evaluate
from cerebro_eeg.runs.readout_choice import READOUTS, head_outputs
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.store_predictions import to_predictions
from cerebro_eeg.runs.verify import verify
from cerebro_eeg.runs.windows import find_splits, read_task
from cerebro_eeg.scores.predictions import headline
from cerebro_eeg.train.distributed import ProcessGroup, process_group
from predict_files import edf
from train_stores import make_store
from train_worker import MODEL

PRESET = Preset(MODEL, ObjectiveConfig(), PretrainConfig(), FinetuneConfig(batch_size=16, warmup_epochs=1, epochs=2))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rivals") / "store"
    with pytest.MonkeyPatch.context() as patch:  # rivals need channels that all windows share
        patch.setattr(train_stores, "MONTAGES", [("Fp1", "Cz", "O1")])
        make_store(folder, subjects=36, seconds=8)
    return folder


def finetuned(store, out, task="alpha", lines=None, **changes):
    asked = {name: changes.pop(name) for name in ("rivals", "random_weights") if name in changes}
    options = finetune.FinetuneOptions(task, **{"steps": 2, **changes})
    say = (lambda line: None) if lines is None else lines.append
    return finetune.finetune(store, out, PRESET, options, Engine(device="cpu", threads=1), say=say, **asked)


def train(store, out, task="alpha", **changes):
    finetuned(store, out, task, **{"rivals": False, **changes})
    return out


def never(*_, **__):
    raise AssertionError("it was computed again")


def test_rivals_find_alpha_in_new_subjects_and_are_scored_on_the_runs_windows(store):
    opened = Store(store)
    (split,) = find_splits(opened, read_task(opened, "alpha", None, None, None))
    with process_group("cpu") as processes:
        found = rivals.rival_predictions(opened, split, processes)
    assert list(found) == ["band power", "filter-bank covariance", "power and covariance", "with narrow bands"]
    for predictions in (rival.predictions for rival in found.values()):
        assert len(predictions) == len(split.test)
        np.testing.assert_array_equal(predictions.truth, split.test.label)
    assert headline(found["band power"].predictions)[1] > 0.9


def test_evaluate_puts_rivals_beside_the_score_once(store, tmp_path, monkeypatch):
    run = train(store, tmp_path / "run", seeds=(0, 1))
    first = evaluate(run, store, device="cpu")
    assert [row["name"] for row in first.rivals] == [*rivals.RIVALS, "chance"]
    assert first.rivals[-1]["rival"] == 0.5
    mean = first.summary["levels"]["window"]["values"]["auroc"]["mean"]
    for row in first.rivals:
        assert row["ours"] == pytest.approx(mean)
        assert row["difference"] == pytest.approx(row["ours"] - row["rival"])
    assert rivals.verdict(first.rivals) in first.text()
    assert first.to_dict()["rivals"] == first.rivals

    for row in first.rivals:  # what each predicted is kept, for curves and tables of the report
        (kept,) = rivals.rival_outputs(run, "test", [""], row["name"])
        assert headline(kept)[1] == row["rival"]
    assert rivals.rival_outputs(run, "validation", [""], "band power") == []
    assert not [line for thing in verify([run]).things for line in thing.uncovered if "rivals" in line]

    monkeypatch.setattr(rivals, "rival_predictions", never)
    assert evaluate(run, store, device="cpu").rivals == first.rivals


def test_no_rivals_and_validation_have_none(store, tmp_path):
    run = train(store, tmp_path / "run")
    assert evaluate(run, store, device="cpu", split="validation").rivals is None
    found = evaluate(run, store, device="cpu", rivals=False)
    assert found.rivals is None
    assert "beside rivals" not in found.text()
    assert not (run / rivals.FILE).exists()


@pytest.mark.parametrize(("task", "folds"), [("folded", 3), ("level", None)])
def test_folds_and_values_have_rivals(store, tmp_path, task, folds):
    run = train(store, tmp_path / "run", task, folds=folds)
    found = evaluate(run, store, device="cpu")
    assert {row["metric"] for row in found.rivals} == {"r2" if task == "level" else "auroc"}
    assert all((row["low"] is None) == (folds is not None) for row in found.rivals)
    assert rivals.verdict(found.rivals) in found.text()


def test_a_damaged_comparison_is_said(store, tmp_path):
    run = train(store, tmp_path / "run")
    (run / rivals.FILE).write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"rivals\.json of .* is damaged; delete it"):
        evaluate(run, store, device="cpu")


def row(difference, above, name="band power", rival=0.8):
    return {
        "name": name, "metric": "auroc", "subjects": 12, "ours": rival + difference, "rival": rival,
        "difference": difference, "low": -0.1, "high": 0.1, "above": above,
        "below": None if above is None else 1 - above, "encoder": True, "centred": False,
    }  # fmt: skip


def test_the_verdict_is_of_the_best_rival():
    weak, strong = row(0.2, 1.0, "weak", 0.6), row(-0.05, 0.02, "strong", 0.85)
    assert rivals.verdict([weak, strong]).startswith("strong with a linear model wins by 0.050 over 12 subjects")
    assert rivals.verdict([weak]).startswith("this model wins: 0.200 ahead of the best rival, weak")
    assert rivals.verdict([row(0.01, 0.6)]).startswith("no winner")
    assert "no interval is possible with" in rivals.verdict([{**row(0.01, None), "low": None, "high": None}])


def test_equal_models_have_no_winner():
    tied = {**row(0.0, 0.0), "below": 0.0}
    assert rivals.verdict([tied]).startswith("no winner")
    assert not rivals.rival_wins(tied)


def test_windows_without_common_channels_are_said():
    assert "no channel in common" in "\n".join(rivals.rival_lines([row(0.2, 1.0, "chance", 0.5)]))


def test_a_model_without_an_encoder_is_called_so_and_its_defeat_is_said():
    """Such a model is saved already, so no rival is saved beside it."""
    same = {**row(-0.1, 0.0), "encoder": False}
    said = rivals.verdict([same])
    assert said.startswith("this model reads simple features alone, as the rivals do: ")
    assert "with a linear model wins by 0.100" in said
    assert not rivals.rival_wins(same)


def test_random_weights_are_named_where_pre_training_does_not_show():
    beaten, equal = row(0.1, 0.99, "random weights"), row(0.01, 0.6, "random weights")
    assert "does not show here" in " ".join(rivals.rival_notes([row(0.1, 1.0), equal]))
    assert rivals.rival_notes([row(0.1, 1.0), beaten]) == []
    assert "--random-weights adds them" in " ".join(rivals.rival_notes([row(0.1, 1.0)]))
    strong = row(-0.2, 0.0, "random weights", 0.99)
    assert "best rival, band power," in rivals.verdict([row(0.1, 1.0), strong])


def test_the_comparison_is_plain_json(store, tmp_path):
    run = train(store, tmp_path / "run")
    found = evaluate(run, store, device="cpu")
    kept = json.loads((run / rivals.FILE).read_text(encoding="utf-8"))
    assert kept == {"format": 2, "rivals": list(found.rivals)}
    assert all(row["centred"] in (True, False) for row in kept["rivals"])


# In finetune


@pytest.fixture(scope="module")
def beaten(store, tmp_path_factory):
    """A training of two steps, which every rival beats."""
    lines = []
    out = tmp_path_factory.mktemp("beaten") / "run"
    return finetuned(store, out, seeds=(0, 1), lines=lines), lines


def test_finetune_compares_its_validation_predictions_and_reads_them_again(store, beaten, monkeypatch):
    found, lines = beaten
    assert any(line.startswith("simple rivals on the same windows") for line in lines)
    mean = np.mean([one.validation for one in found.trained])
    for row in found.rivals:
        assert row["ours"] == pytest.approx(mean)
        assert row["subjects"] == 6
    kept = json.loads((Path(found.folder) / "rivals-validation.json").read_text(encoding="utf-8"))
    assert kept["rivals"] == found.rivals
    assert rivals.verdict(found.rivals) in found.text()
    monkeypatch.setattr(rivals, "rival_predictions", never)
    assert finetuned(store, Path(found.folder), seeds=(0, 1)).rivals == found.rivals


def test_rivals_of_a_run_are_no_setting_of_it(store, tmp_path):
    run = train(store, tmp_path / "run")
    assert not (run / "rivals-validation.json").exists()
    assert "beside rivals" not in finetuned(store, run, rivals=False).text()
    assert finetuned(store, run).rivals is not None


def test_subjects_and_what_they_can_show_are_said_before_training(beaten):
    _, lines = beaten
    (line,) = [line for line in lines if line.startswith("subjects: ")]
    assert line.startswith("subjects: 24 train, 6 validation, 6 test; with 6 test subjects expect")
    assert f"about ±{1.959964 * 0.12 / 6**0.5:.2f} AUROC" in line


def test_a_rival_that_wins_is_saved_whole_and_answers_as_it_did(store, beaten):
    """Its answers for test windows are those that evaluate compares with: one fit, on training and validation."""
    found, _ = beaten
    best = rivals.best_simple(found.rivals)
    assert rivals.rival_wins(best)
    assert f"{best['name']} is saved as a model: cerebro-eeg predict " in found.text()
    model = Cerebro.from_pretrained(Path(found.folder) / "simple")
    assert set(model.head.readout.parts) == set(READOUTS[rivals.RIVALS[best["name"]]])
    assert model.head.names == ("slow", "fast")
    assert model.head.threshold is not None
    assert not model.needs_encoder
    opened = Store(store)
    (split,) = find_splits(opened, read_task(opened, "alpha", None, None, None))
    with process_group("cpu") as processes:
        expected = rivals.rival_predictions(opened, split, processes)[best["name"]]
        output = head_outputs(model, opened, split.test, processes)
    assert model.head.centred == expected.centred
    np.testing.assert_allclose(
        to_predictions(opened, split.test, output).output, expected.predictions.output, atol=1e-4
    )


def test_predict_and_embed_run_the_saved_rival_on_recordings(beaten, tmp_path, monkeypatch, capfd):
    """Electrodes that no encoder was trained on are no matter, for no row of theirs is read."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    time = np.arange(20 * 250) / 250
    for name, hertz in (("slow", 6.0), ("fast", 12.0)):
        noise = np.random.default_rng(0).normal(0, 4, (4, len(time)))
        edf(
            tmp_path / "files" / f"{name}.edf",
            ("O1", "Pz", "Fp1", "Cz"),
            data=20 * np.sin(2 * np.pi * hertz * time) + noise,
        )
    place = str(Path(beaten[0].folder) / "simple")
    assert cli.main(["predict", place, str(tmp_path / "files"), "--out", str(tmp_path / "said"), "--show-paths"]) == 0
    said = json.loads((tmp_path / "said" / "decisions.json").read_text(encoding="utf-8"))
    mean = {row["path"]: row["mean"]["fast"] for row in said["recordings"]}
    model = Cerebro.from_pretrained(place)
    if not model.head.centred:
        assert mean["fast.edf"] > mean["slow.edf"] + 0.3
    assert not any("random" in note for note in said["notes"])
    found = embed(tmp_path / "files" / "slow.edf", place)
    assert found.features.shape == (20, width_of(model.head.readout, model.config))
    with pytest.raises(ChannelError, match="records no training"):
        embed(tmp_path / "files" / "slow.edf", place, level="token")
    assert verify([Path(beaten[0].folder)]).exit_code == 0
    assert "simple/ (not written" not in verify([Path(beaten[0].folder)]).text()
    capfd.readouterr()


@pytest.mark.parametrize(("task", "folds"), [("folded", 3), ("level", None)])
def test_folds_and_values_have_rivals_on_validation_and_each_window_is_read_once(
    store, tmp_path, task, folds, monkeypatch
):
    asked = []
    plain = rivals.predict_windows

    def counted(module, opened, windows, *rest, **options):
        asked.extend(windows.keys().tolist())
        return plain(module, opened, windows, *rest, **options)

    monkeypatch.setattr(rivals, "predict_windows", counted)
    found = finetuned(store, tmp_path / "run", task, folds=folds)
    assert {row["metric"] for row in found.rivals} == {"r2" if task == "level" else "auroc"}
    assert len(asked) == len(set(asked)) > 0
    chance = next(row for row in found.rivals if row["name"] == "chance")
    assert chance["rival"] <= 0 if task == "level" else chance["rival"] == 0.5


@pytest.mark.parametrize(("readout", "control"), [("mean", "encoder"), ("hybrid", "hybrid")])
def test_random_weights_are_added_on_request(store, tmp_path, monkeypatch, readout, control):
    asked = []
    plain = rivals.fit_readout

    def spied(model, opened, split, name, *rest, **options):
        asked.append(name)
        return plain(model, opened, split, name, *rest, **options)

    monkeypatch.setattr(rivals, "fit_readout", spied)
    run = tmp_path / "run"
    before = finetuned(store, run, readout=readout)
    after = finetuned(store, run, readout=readout, random_weights=True)
    assert asked == [control]
    assert [row["name"] for row in after.rivals] == [*(row["name"] for row in before.rivals), "random weights"]
    assert after.rivals[:-1] == before.rivals
    assert 0.4 < after.rivals[-1]["rival"] <= 1
    assert "random weights were left out" in before.text()
    assert "random weights were left out" not in after.text()
    assert finetuned(store, run, readout=readout).rivals == after.rivals
    scored = evaluate(run, store, device="cpu", random_weights=True)
    assert scored.rivals[-1]["name"] == "random weights"
    assert asked == [control, control]


def test_several_processes_leave_rivals_out_with_a_line(store, beaten, tmp_path):
    opened, lines = Store(store), []
    splits = list(find_splits(opened, read_task(opened, "alpha", None, None, None)))
    shared = SimpleNamespace(processes=ProcessGroup(0, 2))
    assert finetune._beside_rivals(shared, splits, [0], tmp_path, False, lines.append) is None
    assert lines == ["note: simple rivals are scored in one process; the same command again without torchrun adds them"]


def test_where_windows_are_thinned_out_no_model_is_asked_about_subjects_that_it_has_seen(store, tmp_path, monkeypatch):
    opened = Store(store)
    (split,) = find_splits(opened, read_task(opened, "alpha", None, None, None))
    assert list(readout_choice.parts_to_fit(split, True, lambda line: None)) == ["train", "validation"]
    monkeypatch.setattr(readout_choice, "MOST_WINDOWS", 150)
    lines = []
    (windows,) = readout_choice.parts_to_fit(split, True, lines.append).values()
    assert len(windows) == 150
    assert not set(windows.subject) & set(split.validation.subject)
    assert lines == [f"note: 150 of {len(split.train)} windows, evenly spread, are used to fit the head"]
    with process_group("cpu") as processes:
        found = rivals.rival_predictions(opened, split, processes, part="validation")
    assert len(found["band power"].predictions) == len(split.validation)
    assert headline(found["band power"].predictions)[1] > 0.9
