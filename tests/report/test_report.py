"""A report is one file that says what the run's files say, loads nothing, and escapes whatever it is given."""

import base64
import dataclasses
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from cerebro_eeg.channels.electrodes import POSITIONS
from cerebro_eeg.commands.progress_lines import write_page
from cerebro_eeg.config import FinetuneConfig, Preset
from cerebro_eeg.errors import CerebroError, ConfigError, InputError
from cerebro_eeg.progress import Progress
from cerebro_eeg.report import figures, score_pictures
from cerebro_eeg.report import finetune as finetune_report
from cerebro_eeg.report import pretrain as pretrain_report
from cerebro_eeg.report.figures import drawing, place
from cerebro_eeg.report.finetune import report_finetune
from cerebro_eeg.report.page import (
    Hint,
    facts,
    figure,
    folded,
    heading,
    page,
    paragraph,
    preformatted,
    short_id,
    table,
    verdict_box,
)
from cerebro_eeg.report.pretrain import report_pretrain
from cerebro_eeg.report.verdicts import Verdict
from cerebro_eeg.runs import evaluate, finetune, pretrain
from cerebro_eeg.runs.reconstruction import BandErrors, ChannelErrors, Errors, Example
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.scores.roc import GRID, Curve
from cerebro_eeg.train.log import read_lines
from train_stores import make_store
from train_worker import MODEL, preset

HOSTILE = "<script>alert('x')</script>&\"$x$"
ENGINE = Engine(device="cpu", readers=0)
ERRORS = Errors(10, 200, 0.4, 1.0, 0.8, 0.3)


class Page(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, path):
        super().__init__(convert_charrefs=True)
        self.tags, self.links, self.words, self.open, self.titles = [], [], [], [], []
        self.feed(path.read_text("utf-8") if hasattr(path, "read_text") else path)
        self.close()
        assert not self.open, f"never closed: {self.open}"
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in ("meta", "img"):
            self.open.append(tag)
        self.titles += [value for name, value in attributes if name == "title"]
        self.links += [value for name, value in attributes if name in ("src", "href", "srcset", "action", "data")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    def images(self):
        return [base64.b64decode(link.partition("base64,")[2]) for link in self.links]


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(finetune_report, "RESAMPLES", 20)  # intervals are tested where they are made
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store, a pre-training and a fine-tuning on it, and their reports."""
    folder = tmp_path_factory.mktemp("made")
    make_store(folder / "store", 6, 6, pretrain=True)
    choices = pretrain.PretrainOptions(steps=6, seconds=1.0, paper=True)
    pretrain.pretrain([folder / "store"], folder / "pretrain", preset({}), choices, ENGINE)
    report_pretrain(folder / "pretrain", [folder / "store"])
    table = FinetuneConfig(batch_size=16, peak_lr=3e-3, warmup_epochs=1, epochs=2)
    chosen = finetune.FinetuneOptions("alpha", seeds=(0, 1), steps=3)
    finetune.finetune(folder / "store", folder / "finetune", Preset(MODEL, finetune=table), chosen, ENGINE)
    report_finetune(folder / "finetune")
    return folder


@pytest.fixture
def copy(made, tmp_path):
    """The pre-training, to spoil."""
    shutil.copytree(made / "pretrain", tmp_path / "run")
    return tmp_path / "run"


def numbers(errors):
    return [f"{value:.4f}" for value in (errors["model"], errors["mean"], errors["interpolation"], errors["ridge"])]


# The page of a pre-training


@pytest.mark.parametrize("run", ["pretrain", "finetune"])
def test_a_report_loads_nothing_and_runs_nothing(made, run):
    text = (made / run / "report.html").read_text("utf-8")
    found = Page(made / run / "report.html")
    assert found.links
    assert all(link.startswith("data:image/svg+xml;base64,") for link in found.links)
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & set(found.tags)
    assert not re.search(r"https?://|url\(|@import|javascript:|\son\w+=", re.sub(r"base64,[^\"]*", "", text))
    assert "default-src 'none'" in text
    assert 'name="viewport"' in text
    for image in found.images():
        tree = ElementTree.fromstring(image)
        assert tree.tag.endswith("}svg")
        links = [v for e in tree.iter() for k, v in e.attrib.items() if k.rpartition("}")[2] in ("href", "src")]
        assert all(link.startswith("#") or link.startswith("data:") for link in links)
        assert len(list(tree.iter())) > 40  # something is drawn


def test_a_report_has_the_numbers_of_the_run(made):
    found = Page(made / "pretrain" / "report.html")
    lines = read_lines(made / "pretrain" / "metrics.jsonl")
    last = [line for line in lines if "loss" in line][-1]
    masked = [line for line in lines if "validation_masked" in line][-1]
    assert f"It took {last['step']} steps in" in found.text
    assert f"the loss of the last is {last['loss']:.4f}." in found.text
    assert f"The masked error on all validation windows is {masked['validation_masked']:.4f}." in found.text
    assert "Validation: masked" in "".join(ElementTree.fromstring(found.images()[-1]).itertext())
    kept = json.loads((made / "pretrain" / "reconstruction.json").read_text())["found"]
    assert "Too few subjects for a verdict" in found.text  # one person validates
    assert len(kept["subjects"]) == 1
    assert kept["subjects"][0]["model"] == pytest.approx(kept["total"]["model"])
    for errors in [kept["total"], *(group["errors"] for group in kept["groups"])]:
        assert " ".join(numbers(errors)) in found.text
    # All validation windows were looked at, with the masks of validation.
    assert kept["total"]["model"] == pytest.approx(masked["validation_masked"], rel=1e-5)
    run = json.loads((made / "pretrain" / "run.json").read_text())
    for word in [run["settings"]["stores"][0]["sha256"], run["versions"]["torch"], "which were not trained on"]:
        assert word in found.text
    assert str(made) not in found.text


def test_without_the_store_there_are_numbers_but_no_signals(made, copy):
    whole, later = Page(copy / "report.html"), Page(report_pretrain(copy))
    kept = json.loads((copy / "reconstruction.json").read_text())["found"]
    assert " ".join(numbers(kept["total"])) in later.text
    assert 0 < len(later.links) < len(whole.links)


def test_without_anything_there_are_still_curves(copy):
    for name in ("reconstruction.json", "model.safetensors", "report.html"):
        (copy / name).unlink()
    found = Page(report_pretrain(copy))
    assert len(found.links) == 1
    assert "The stores were not at hand" in found.text
    assert "Not judged yet" in found.text


def test_numbers_of_other_weights_are_not_shown(copy):
    path = copy / "reconstruction.json"
    kept = json.loads(path.read_text())
    path.write_text(json.dumps({**kept, "weights": "0" * 64}))
    assert "The stores were not at hand" in Page(report_pretrain(copy)).text
    path.write_text('{"weights"')
    with pytest.raises(ConfigError, match="damaged"):
        report_pretrain(copy)


def test_other_stores_are_refused(made, copy, tmp_path):
    make_store(tmp_path / "other", 3, 4, name="other", pretrain=True)
    with pytest.raises(InputError, match="not those that the run was trained on"):
        report_pretrain(copy, [tmp_path / "other"])
    with pytest.raises(CerebroError, match="one training of a run"):
        report_finetune(made / "finetune" / "seed-0")


def test_a_store_without_validation_says_so(tmp_path):
    make_store(tmp_path / "store", 3, 4)
    choices = pretrain.PretrainOptions(steps=2, seconds=1.0, paper=True)
    pretrain.pretrain([tmp_path / "store"], tmp_path / "run", preset({}), choices, ENGINE)
    found = Page(report_pretrain(tmp_path / "run", [tmp_path / "store"]))
    assert "windows that were also trained on" in found.text
    words = ["".join(ElementTree.fromstring(image).itertext()) for image in found.images()]
    (curves,) = (one for one in words if "Learning rate" in one)
    assert "Gradient norm" in curves
    assert "alidat" not in curves  # no empty panel


def test_hostile_names_are_text(copy):
    path = copy / "run.json"
    run = json.loads(path.read_text())
    run["settings"]["stores"][0]["dataset"] = HOSTILE
    run["versions"]["platform"] = HOSTILE
    run["settings"]["choices"]["without"] = [HOSTILE]
    path.write_text(json.dumps(run))
    kept = json.loads((copy / "reconstruction.json").read_text())
    kept["found"]["groups"][0]["dataset"] = HOSTILE
    kept["found"]["channels"][0]["channel"] = HOSTILE
    (copy / "reconstruction.json").write_text(json.dumps(kept))
    found = Page(report_pretrain(copy))
    assert "script" not in found.tags
    assert found.text.count("<script>alert('x')</script>") >= 4
    for image in found.images():
        assert not [e for e in ElementTree.fromstring(image).iter() if e.tag.endswith("script")]


def test_every_part_of_a_page_escapes():
    parts = [heading(HOSTILE), paragraph(HOSTILE), facts([(HOSTILE, HOSTILE)]), preformatted(HOSTILE)]
    parts += [verdict_box(Verdict("wins", HOSTILE, (HOSTILE,), (HOSTILE,)))]
    parts += [
        table([HOSTILE], [[HOSTILE]], [0]),
        table([], [[Hint(HOSTILE, HOSTILE)]]),
        folded(HOSTILE, paragraph(HOSTILE)),
    ]
    parts.append(figure(lambda canvas: canvas.text(0.5, 0.5, HOSTILE), 1, 1, HOSTILE, HOSTILE))
    found = Page(page(HOSTILE, parts))
    assert "script" not in found.tags
    assert found.text.count(HOSTILE) == 16  # twice the title, and once or twice each
    assert HOSTILE in found.titles
    (image,) = found.images()
    assert HOSTILE in "".join(ElementTree.fromstring(image).itertext())


# The page of a fine-tuning


def test_a_fine_tuning_has_the_scores_of_its_seeds(made):
    found = Page(made / "finetune" / "report.html")
    scores = [json.loads((made / f"finetune/seed-{n}/finished.json").read_text())["validation"] for n in (0, 1)]
    mean, spread = f"{np.mean(scores):.3f}", f"{np.std(scores, ddof=1):.3f}"
    assert f"AUROC {mean} {spread} 0.500" in found.text  # no interval, and no rival: these columns are left out
    assert "Not tested yet. Validation: too few validation data" in found.text
    assert f"AUROC was {mean}, where a guess has 0.500" in found.text
    assert "The test split was not scored" in found.text
    assert "share no subject" in found.text


def test_the_test_scores_come_with_how_often_they_were_made(made, tmp_path):
    run = shutil.copytree(made / "finetune", tmp_path / "run")
    evaluate.evaluate(run, made / "store", device="cpu", resamples=100)
    found = Page(report_finetune(run))
    record = json.loads((run / "test.json").read_text())
    mean = record["first"]["summary"]["levels"]["window"]["values"]["auroc"]["mean"]
    assert f"{mean:.3f}" in found.text
    assert "The test set was scored once." in found.text
    assert "Positive: fast" in found.text
    assert found.text.count("at the threshold chosen on validation (") == 2  # of the test set and of validation
    assert "Too few test data to say how good this model is: 6 windows of 1 test subject." in found.text
    assert len(found.images()) == 1  # of the curves of training: nothing else could be carried
    assert "Not drawn, because 6 windows of 1 test subject cannot carry it: ROC curves, calibration" in found.text
    sensitivity = record["first"]["summary"]["at_threshold"]["levels"]["window"]["values"]["sensitivity"]
    assert f"sensitivity {sensitivity['mean']:.3f}" in found.text
    assert "n/a" not in found.text
    (run / "test.json").write_text(json.dumps({**record, "scorings": 3}))
    assert "scored 3 times; the numbers are of the first time" in Page(report_finetune(run)).text


def test_the_page_begins_with_who_wins(made, tmp_path):
    """The command of a saved winner does not name the folder of the run."""
    run = shutil.copytree(made / "finetune", tmp_path / "run")
    (run / "rivals-validation.json").write_text(json.dumps({"format": 2, "rivals": RIVALS}))
    (run / "simple").mkdir()
    (run / "simple" / "model.safetensors").touch()
    text = Page(report_finetune(run)).text
    first = text.index("Not tested yet. Validation: too few validation data")
    then = text.index("the best simple rival, power and covariance, had 1.000")
    assert 0 < first < then < text.index("Beside simple features") < text.index("All scores")
    assert "cerebro-eeg predict my-run/simple FILES" in text
    assert "power and covariance 1.000 0.700 -0.300 -0.400 to -0.200" in text
    assert text.count("Weights and threshold were chosen on these windows") == 1
    assert str(tmp_path) not in text


def test_a_column_without_anything_is_left_out():
    text = Page(page("x", [table(["a", "b", "c"], [["1", "n/a", ""], ["2", "n/a", "5"]], [0, 2])])).text
    assert text == "x x a c 1 2 5"
    assert "<th>b</th>" in table(["a", "b"], [])  # there is nothing to tell from
    assert '<td class="best">5</td>' in table(["a", "b", "c"], [["2", "n/a", "5"]], [2])


def test_a_long_id_is_short_and_whole():
    assert short_id("sub-01") == "sub-01"
    assert short_id("a1" * 12) == Hint("a1a1a1a1…", "a1" * 12)


def test_colours_of_rivals_say_who_wins(tmp_path):
    found = pixels(tmp_path, DRAWINGS["rivals"])
    orange, blue = (found[..., 0] - found[..., 2]) > 0.5, (found[..., 2] - found[..., 0]) > 0.5
    middle = found.shape[1] // 2
    assert orange.sum() > 1.5 * blue.sum() > 0
    assert orange.nonzero()[1].mean() < middle < blue.nonzero()[1].mean()


def test_regression_and_folds_have_a_page(made, tmp_path):
    table = FinetuneConfig(batch_size=16, epochs=1, warmup_epochs=0)
    choices = finetune.FinetuneOptions("level", folds=3, steps=1)
    finetune.finetune(made / "store", tmp_path / "run", Preset(MODEL, finetune=table), choices, ENGINE)
    text = Page(report_finetune(tmp_path / "run")).text
    assert "R2 " in text[: text.index("All scores")]
    assert "in each of 3 folds" in text
    assert "RMSE: lower is better" in text
    assert "Confusion" not in text


def test_a_report_tells_what_it_is_at(made, copy, tmp_path, monkeypatch, capsys):
    """Every part tells before it begins, so that no long one passes without a sign of life."""
    told = []
    report_pretrain(copy, [made / "store"], tell=lambda *part: told.append(part))
    counts = [(part, done) for part, done, total in told if total]
    assert {part for part, _ in counts} == {"windows for the ridge baseline", "windows with masked patches"}
    assert all(done < total for _, done, total in told if total)
    drawn = [part for part, _, total in told if part.startswith("figure: ")]
    assert len(drawn) == Page(copy / "report.html").tags.count("img")
    run, told = shutil.copytree(made / "finetune", tmp_path / "tuned"), []
    report_finetune(run, tell=lambda *part: told.append(part))
    assert told[:2] == [("validation scores of trainings", 0, 2), ("validation scores of trainings", 1, 2)]
    monkeypatch.setattr(Progress, "due", lambda progress: True)
    write_page(lambda tell: (tell("windows", 0, 9), tell("windows", 3, 9), tell("figure: a head", 0, 0)), Progress())
    first, *said = capsys.readouterr().err.splitlines()
    assert first == "writing report.html"
    assert said == [
        "report.html: windows, 0 of 9, ? left",
        "report.html: windows, 3 of 9, 0 s left",
        "report.html: figure: a head",
    ]


def test_a_missing_package_is_named_before_any_work(copy, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs matplotlib"):
        report_pretrain(copy)


def test_a_run_of_a_release_without_scores_at_the_threshold_has_a_page(made, tmp_path):
    run = shutil.copytree(made / "finetune", tmp_path / "run")
    evaluate.evaluate(run, made / "store", device="cpu", resamples=100)
    record = json.loads((run / "test.json").read_text())
    for score in (record["first"], record["last"]):
        del score["summary"]["at_threshold"]
        for one in score["trainings"]:
            del one["scores"]["at_threshold"]
    (run / "test.json").write_text(json.dumps({**record, "format": 1}))
    assert Page(report_finetune(run)).text.count("at the threshold chosen on validation (") == 1  # of validation


# Plots


def pixels(tmp_path, draw, width=6, height=4):
    from matplotlib.image import imread

    with drawing(tmp_path / "picture.png", width, height) as canvas:
        draw(canvas)
    return imread(tmp_path / "picture.png")[..., :3]


def example(montage=("Fp1", "Cz", "O2")):
    rng = np.random.default_rng(0)
    shape = (len(montage), 8, 64)
    masked = rng.random(shape[:2]) < 0.5
    x, y = rng.normal(size=(2, *shape)).astype(np.float32)
    return Example("made", "a_1", 10.0, montage, x, y, masked)


CHANNELS = [
    ChannelErrors(n, dataclasses.replace(ERRORS, model=0.2 + 0.1 * k)) for k, n in enumerate(POSITIONS) if k < 19
]
BANDS = [BandErrors("delta", 0, 4, 0.7, 0.5, 1.2, 0.4), BandErrors("theta", 4, 8, 0.3, 0.6, 1.0, 0.4)]
LINES = [{"step": s, "loss": 2 / s, "lr": 1e-3, "norm": 1.0 + s % 3, "validation_auroc": 0.6} for s in range(1, 50)]
CALIBRATION = {
    "error": 0.1,
    "bins": [{"said": 0.2, "true": 0.3, "windows": 9}, {"said": 0.8, "true": 0.7, "windows": 5}],
}
SUBJECTS = [[{"subject": f"s{k}", "values": {"accuracy": k / 9, "auroc": None}} for k in range(9)]]
RIVALS = [
    {
        "name": name, "metric": "auroc", "subjects": 9, "ours": 0.7, "rival": 0.7 - difference, "centred": False,
        "difference": difference, "low": difference - 0.1, "high": difference + 0.1, "encoder": True,
        "above": float(difference > 0), "below": float(difference < 0),
    }
    for name, difference in (("band power", -0.2), ("power and covariance", -0.3), ("chance", 0.2))
]  # fmt: skip
CURVE = Curve(GRID**0.5, GRID, np.sqrt(GRID))
DRAWINGS = {
    "signals": lambda c: pretrain_report.draw_signals(c, example(), MODEL),
    "bands": lambda c: pretrain_report.draw_bands(c, BANDS),
    "datasets": lambda c: pretrain_report.draw_datasets(c, {"a": ERRORS, "b": dataclasses.replace(ERRORS, model=0.1)}),
    "channels": lambda c: pretrain_report.draw_channels(c, CHANNELS),
    "curves": lambda c: figures.draw_curves(c, {"": LINES}, [("validation_auroc", "own")]),
    "confusion": lambda c: score_pictures.draw_confusions(c, {"x": np.array([[5, 1], [2, 7]])}, ["a", "b"]),
    "calibration": lambda c: score_pictures.draw_calibration(c, {"seed 0": CALIBRATION}),
    "subjects": lambda c: score_pictures.draw_subjects(c, SUBJECTS, "accuracy", {f"s{k}": str(k) for k in range(9)}),
    "roc": lambda c: score_pictures.draw_roc(c, {"a": [("this model", CURVE), ("band power", CURVE)]}),
    "rivals": lambda c: score_pictures.draw_rivals(c, RIVALS),
}


def legends(draw):
    """The words of all legends of a figure."""
    with figures.sketching(9, 6) as canvas:
        draw(canvas)
        found = [axes.get_legend() for axes in canvas.axes]
    return [[text.get_text() for text in legend.get_texts()] for legend in found if legend is not None]


def test_many_trainings_share_one_name_and_their_middle_is_drawn():
    """Twenty-five names would cover the picture."""
    few, many = ({f"fold-{k % 5} seed {k // 5}": LINES for k in range(count)} for count in (8, 25))
    curves = lambda runs: lambda c: figures.draw_curves(c, runs, [("validation_auroc", "own")])  # noqa: E731
    assert legends(curves(few)) == [list(few), list(few)]
    assert legends(curves(many)) == [["median of 25 trainings"], ["median of 25 trainings"]]
    calibrated = {name: {**CALIBRATION, "error": 0.01 * k} for k, name in enumerate(many)}
    (words,) = legends(lambda c: score_pictures.draw_calibration(c, calibrated))
    assert words == ["as said, so it is", "all 25 trainings: errors 0.000 to 0.240"]
    (words,) = legends(lambda c: score_pictures.draw_calibration(c, {name: calibrated[name] for name in few}))
    assert len(words) == 9


def test_the_middle_of_trainings_of_other_lengths():
    steps, long = np.arange(1.0, 5.0), np.array([2.0, 4.0])
    found = figures._median([(steps, 1 * steps), (long, 3 * long), (steps[:3], 6 * steps[:3])])
    assert [x.tolist() for x in found] == [[2.0, 3.0, 4.0], [6.0, 9.0, 8.0]]  # between steps 2 and 4 there is a line
    short = steps[:2], steps[:2]
    assert figures._median([(steps, steps), short, short])[0].tolist() == [1.0, 2.0]


def test_bins_of_several_trainings_are_weighted_by_their_windows():
    one = np.array([0.12, 0.55]), np.array([0.0, 0.5]), np.array([10.0, 30.0])
    other = np.array([0.18, 1.0]), np.array([0.4, 1.0]), np.array([30.0, 5.0])
    said, true, windows = score_pictures.pooled_bins([one, other])
    assert said.tolist() == pytest.approx([(1.2 + 5.4) / 40, 0.55, 1.0])
    assert true.tolist() == pytest.approx([12 / 40, 0.5, 1.0])
    assert windows.tolist() == [40.0, 30.0, 5.0]


@pytest.mark.parametrize("name", DRAWINGS)
def test_plots_are_not_empty(tmp_path, name):
    found = pixels(tmp_path, DRAWINGS[name])
    assert (found < 0.9).any(-1).mean() > 0.005
    coloured = (found.max(-1) - found.min(-1) > 0.2).mean()
    assert coloured > 0.0005


def test_a_reconstruction_is_drawn_where_it_is_masked_and_nowhere_else(tmp_path):
    orange = lambda x: ((x[..., 0] - x[..., 2]) > 0.5).sum()  # noqa: E731
    one = example()
    nothing = dataclasses.replace(one, masked_CN=np.zeros_like(one.masked_CN))
    everything = dataclasses.replace(one, masked_CN=np.ones_like(one.masked_CN))
    counts = [
        orange(pixels(tmp_path, lambda c, e=e: pretrain_report.draw_signals(c, e, MODEL)))
        for e in (nothing, one, everything)
    ]
    assert counts[0] < 0.1 * counts[1] < 0.1 * counts[2]  # the legend has a little


def test_places_on_the_head():
    assert place("Cz") == pytest.approx((0, 0), abs=1e-6)
    x, y = place("T8")
    assert x == pytest.approx(1, abs=0.05)
    assert abs(y) < 0.05
    assert place("Fp1")[1] > 0.9
    half = place("C3-C4")
    assert half == pytest.approx((0, 0), abs=0.02)
    assert place("Nowhere") is None


@pytest.mark.parametrize("channels", [[], CHANNELS[:1], CHANNELS[:3], [ChannelErrors("Nowhere", ERRORS)]])
def test_a_head_with_few_electrodes(tmp_path, channels):
    pixels(tmp_path, lambda c: pretrain_report.draw_channels(c, channels))


def test_a_run_without_a_step_has_a_picture(tmp_path):
    pixels(tmp_path, lambda c: figures.draw_curves(c, {"": []}, [("validation_auroc", "own")]))
    broken = [{"step": 1, "loss": None, "lr": 0.0, "norm": 0.0}]
    pixels(tmp_path, lambda c: figures.draw_curves(c, {"": broken}, []))


def test_smoothing_keeps_a_straight_line():
    line = np.arange(1000.0)
    found = figures.smooth(line)
    np.testing.assert_allclose(found[20:-20], line[20:-20])
    assert len(figures.smooth(np.empty(0))) == 0


def test_an_error_of_what_draws_appears_where_something_is_drawn():
    """Its import while trainings run must not end the command that waits for them."""
    code = (
        "from cerebro_eeg.report import figures; figures.import_ahead(); print('goes on'); "
        "from pathlib import Path; figures.drawing(Path('x.svg'), 1, 1).__enter__()"
    )
    environment = {**os.environ, "MPLBACKEND": "nosuch"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout == "goes on\n"
    assert "nosuch" in done.stderr
