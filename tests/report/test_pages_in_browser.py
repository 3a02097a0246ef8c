"""Every kind of page in a headless Chromium: readable on a desk and on a phone, in the dark and on paper, and alone."""

import base64
import os
import re
import shutil
from types import SimpleNamespace

import pytest

import train_stores
from browser import WIDTHS
from cerebro_eeg.commands.info_store import info_store
from cerebro_eeg.config import FinetuneConfig, Preset
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.report.compare import report_compare
from cerebro_eeg.report.finetune import report_finetune
from cerebro_eeg.report.page import facts, figure, page, paragraph, preformatted, table, verdict_box
from cerebro_eeg.report.predictions import CLOSE, headline, report_predict
from cerebro_eeg.report.pretrain import report_pretrain
from cerebro_eeg.report.verdicts import Verdict
from cerebro_eeg.runs import compare, evaluate, finetune, pretrain
from cerebro_eeg.runs.settings import Engine
from train_stores import make_store
from train_worker import MODEL, preset

ENGINE = Engine(device="cpu", threads=1, readers=0)
TABLE = FinetuneConfig(batch_size=16, peak_lr=3e-3, warmup_epochs=1, epochs=2)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page of each kind, by name, made of small stores: many subjects with rivals, and one with too few."""
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        make_store(folder / "few", 6, 6, pretrain=True)
        patch.setattr(train_stores, "MONTAGES", [("Fp1", "Cz", "O1")])  # rivals need channels that all windows share
        make_store(folder / "many", 36, 8, pretrain=True, prefixes=("a1b2c3d4e5f6a7b8c9d0e1f2",))
        found = {}
        choices = pretrain.PretrainOptions(steps=4, seconds=1.0)
        for name in ("few", "many"):
            pretrain.pretrain([folder / name], folder / f"pretrain-{name}", preset({}), choices, ENGINE)
            found[f"pretrain-{name}"] = report_pretrain(folder / f"pretrain-{name}", [folder / name])
            for task in ("alpha", "third") if name == "many" else ("alpha",):
                out = folder / f"finetune-{name}-{task}"
                options = finetune.FinetuneOptions(task, seeds=(0, 1) if name == "few" else (0,), steps=4)
                finetune.finetune(folder / name, out, Preset(MODEL, finetune=TABLE), options, ENGINE)
                found[f"{out.name}-untested"] = shutil.copy(report_finetune(out), folder / f"{out.name}.html")
                evaluate.evaluate(out, folder / name, device="cpu", resamples=100)
                found[out.name] = report_finetune(out)
        options = finetune.FinetuneOptions("level", steps=3)
        finetune.finetune(folder / "few", folder / "values", Preset(MODEL, finetune=TABLE), options, ENGINE)
        found["values"] = report_finetune(folder / "values")
        model = Cerebro(config=MODEL)
        model.save_pretrained(folder / "model")
        rows = ("chance", "band power", "mean, random weights", "mean, frozen", "default")
        asked = compare.CompareOptions(("alpha", "third"), rows, repeats=1, seeds=1, resamples=100, untrained="as_is")
        compare.compare(folder / "many", folder / "compare", asked, ENGINE, folder / "model")
        found["compare"] = report_compare(folder / "compare")
        info_store(folder / "many", folder / "store.html")
        found["store"] = folder / "store.html"
        found["predict"] = report_predict(folder, ABOUT, ROWS, False)
    return SimpleNamespace(folder=folder, paths=found)


NAMES = (
    "pretrain-few",
    "pretrain-many",
    "finetune-few-alpha-untested",
    "finetune-few-alpha",
    "finetune-many-alpha",
    "finetune-many-third",
    "values",
    "compare",
    "store",
    "predict",
)
ABOUT = {
    "kind": "classification", "names": ["closed", "open"], "threshold": 0.6, "notes": ["a note"],
    "preparation": "recordings are prepared", "window_seconds": 5.0, "stride_seconds": 5.0,
}  # fmt: skip
ROWS = [
    {
        "recording": f"{number:x}" * 24, "decision": "open" if number > 6 else "closed", "windows": 9, "seconds": 45.0,
        "mean": {"closed": 1 - number / 10, "open": number / 10}, "faults": ["clipped"] * (number == 3),
        "problem": "",
    }
    for number in range(10)
] + [{"recording": "f" * 24, "mean": None, "problem": "channels: " + "no training of Oz, " * 40}]  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_a_page_can_be_read(browser, pages, name, width):
    seen = browser.look(pages.paths[name], width)
    assert seen.console == []
    assert seen.requests == []
    assert seen.facts["scroll"] <= width, "the page is wider than the window"
    assert seen.facts["wide"] == []
    assert seen.decoded
    assert all(seen.decoded)
    assert all(complete and wide > 0 and high > 0 for _, complete, wide, high, _ in seen.facts["images"])
    assert all(alt for alt, *_ in seen.facts["images"])
    assert any(visible for *_, visible in seen.facts["images"])
    assert len(seen.facts["headline"]) > 40
    assert seen.facts["headlineTop"] < 200  # the first thing that is seen
    assert "n/a" not in seen.facts["text"]
    (kind, largest, _), *others = seen.facts["sizes"]
    assert kind == "sentence"
    assert all(size < largest for _, size, _ in others)


def test_few_data_give_no_large_number(browser, pages):
    for name in ("finetune-few-alpha", "finetune-few-alpha-untested"):
        seen = browser.look(pages.paths[name])
        assert [kind for kind, _, _ in seen.facts["sizes"]] == ["sentence"]  # no number in a box
        assert "oo few" in seen.facts["sizes"][0][2]
        assert "0." not in seen.facts["sizes"][0][2]


def test_enough_data_have_curves_and_rivals(browser, pages):
    seen = browser.look(pages.paths["finetune-many-alpha"])
    assert "on 6 test subjects" in seen.facts["headline"]
    assert any("false alarms" in alt for alt, *_ in seen.facts["images"])
    for word in ("band power", "filter-bank covariance", "power and covariance", "with narrow bands"):
        assert seen.facts["text"].count(word) >= 2  # in the comparison, and in the table of all scores
    several = browser.look(pages.paths["finetune-many-third"])
    assert any("a against the rest; b against the rest" in alt for alt, *_ in several.facts["images"])
    several = browser.look(pages.paths["compare"])
    assert "2 tasks" in several.facts["headline"]
    assert sum("false alarms" in alt for alt, *_ in several.facts["images"]) == 2


def test_no_long_id_stands_in_a_picture_or_a_table(pages):
    """An id of 24 digits is only the hint of a cell, which a reader sees by pointing at it."""
    seen = 0
    for path in (path for name, path in pages.paths.items() if name != "store"):  # it shows its hash
        text = path.read_text("utf-8").partition("Where it comes from")[0]
        pictures = "".join(base64.b64decode(data).decode() for data in re.findall(r'svg\+xml;base64,([^"]*)"', text))
        assert not re.search(r"a1b2c3d4e5f6a7b8c9|subject-of-somebody", pictures)
        for before in re.split(r"[0-9a-f]{24}(?![0-9a-f])", re.sub(r"base64,[^\"]*", "", text))[:-1]:
            assert before.endswith('title="')
            seen += 1
    assert seen


def test_a_close_answer_and_an_unused_recording_are_warned_of():
    said = headline(ABOUT, ROWS)
    assert said.sentence == "10 recordings: closed 7, open 3."
    assert said.warnings[0] == "1 of 11 recordings could not be used: see below."
    assert said.warnings[1].startswith(f"1 of 10 mean probabilities lie within {CLOSE:g} of the threshold")
    assert headline({**ABOUT, "kind": "regression", "threshold": None}, ROWS[:2]).sentence == "2 recordings predicted."


def test_the_dark_and_the_paper(browser, pages, tmp_path):
    path = pages.paths["finetune-many-alpha"]

    def brightness(colour):
        return sum(map(float, colour[colour.index("(") + 1 : colour.index(")")].split(",")[:3]))

    light, dark = browser.look(path), browser.look(path, dark=True)
    ink, paper = light.facts["headlineColours"]
    assert brightness(ink) < 200 < 700 < brightness(paper)
    ink, paper = dark.facts["headlineColours"]
    assert brightness(ink) > 500 > 200 > brightness(paper)
    printed = browser.look(path, 800, dark=True, printed=True)  # also of a reader who likes it dark
    ink, paper = printed.facts["headlineColours"]
    assert brightness(ink) < 200 < 700 < brightness(paper)
    data = browser.print(path)
    assert data.startswith(b"%PDF-")
    assert data.count(b"/Type /Page\n") + data.count(b"/Type /Page ") + data.count(b"/Type/Page") >= 1


def test_the_helper_sees_what_is_wrong(browser, tmp_path):
    """A page with every fault is told by what the browser reports, so the tests above can fail."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<body style='margin:0'><div class='verdict' style='visibility:hidden'>x</div><div style='width:3000px'>wide"
        "</div><img alt='a' src='data:image/png;base64,AAAA'><img alt='b' src='https://example.invalid/x.png'>"
        "<script>console.error('shout'); nothing();</script>"
    )
    seen = browser.look(bad, 400)
    assert seen.facts["headline"] is None
    assert seen.facts["wide"]
    assert seen.requests == ["https://example.invalid/x.png"]
    assert "shout" in seen.console
    assert seen.decoded == [False, False]
    policy = tmp_path / "policy.html"  # our pages cannot ask for anything, even by mistake
    parts = [verdict_box(Verdict("wins", "A sentence.")), "<img alt='b' src='https://example.invalid/x.png'>"]
    policy.write_text(page("x", parts))
    blocked = browser.look(policy)
    assert "has been blocked" in blocked.console[0]
    assert blocked.decoded == [False]


def test_hostile_text_stays_text(browser, tmp_path):
    hostile = "<script>document.title='owned'</script><img src=x onerror=alert(1)>\"'" + "w" * 300
    parts = [verdict_box(Verdict("wins", hostile, (hostile,), (hostile,))), facts([(hostile, hostile)])]
    parts += [paragraph(hostile), table([hostile], [[hostile]]), preformatted(hostile, "command")]
    parts.append(figure(lambda canvas: canvas.text(0.5, 0.5, hostile), 3, 2, hostile))
    path = tmp_path / "hostile.html"
    path.write_text(page(hostile, parts))
    seen = browser.look(path, 400)
    assert seen.console == seen.requests == []
    assert seen.facts["scroll"] <= 400
    assert seen.facts["commands"] == [hostile]
    assert len(seen.facts["images"]) == 1
