"""What notebooks show: one line, HTML in which no text of others is markup, tables of any size, frames on request."""

import html
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from cerebro_eeg.errors import ConfigError
from cerebro_eeg.notebook import COLUMNS, ROWS, Shown, by_column, column_names
from cerebro_eeg.runs.decisions import Prediction
from cerebro_eeg.runs.embed import Embedding
from cerebro_eeg.runs.features import FeatureTable
from cerebro_eeg.runs.results import FinetuneResult, TrainedResult
from cerebro_eeg.runs.verify import Verified, VerifyResult

EVIL = "<script>alert(1)</script>&amp;\"'\x1b[2J\nrow\u202e"
TAGS = {"div", "p", "b", "br", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"}


class Tags(HTMLParser):
    """The tags of a page, and whether they close in order."""

    def __init__(self):
        super().__init__()
        self.found, self.open, self.attributes = set(), [], []

    def handle_starttag(self, tag, attrs):
        self.found.add(tag)
        self.attributes += attrs
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def prediction(names=("rest", "seizure"), kind="classification", windows=3):
    output = np.linspace(0, 1, windows * len(names), dtype=np.float32).reshape(windows, -1)
    start = 2.0 * np.arange(windows)
    stretch, short = np.zeros(windows, np.int64), np.zeros(windows, np.bool_)
    short[0] = True
    return Prediction(kind, names, None, output, start, 2.0, stretch, short, 6.0, (EVIL,), (EVIL,), "plan")


def results():
    trained = TrainedResult(EVIL, EVIL, 0, 3, EVIL, 0.5, None)
    context = {"recording": np.array([EVIL] * 2), "start": np.arange(2.0), "label": np.array([EVIL, "b"])}
    return [
        prediction((EVIL, "b")),
        prediction((EVIL, EVIL + "2"), "regression"),
        Embedding(np.zeros((2, 3, 4), np.float32), np.arange(2.0), 1.0, (EVIL, "b", "c")),
        FeatureTable(np.zeros((2, 3), np.float32), context, (), EVIL, (EVIL,)),
        FinetuneResult(EVIL, EVIL, "subject", (trained,), 3.0, EVIL, EVIL, seen={"text": EVIL}),
        VerifyResult((Verified(EVIL, EVIL, [EVIL], [EVIL], [EVIL]),)),
    ]


@pytest.mark.parametrize("result", results(), ids=lambda result: type(result).__name__)
def test_no_text_of_others_is_markup(result):
    page = result._repr_html_()
    tags = Tags()
    tags.feed(page)
    assert tags.found <= TAGS
    assert tags.open == []
    assert tags.attributes == []
    shown = html.unescape(re.sub("<[^>]*>", " ", page))
    assert "script" in shown  # it is there, as text
    for text in (page, repr(result)):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "\n" not in text
    assert len(repr(result)) < 300


def test_a_prediction_as_a_frame():
    frame = prediction(("eyes open", "eyes closed")).to_frame()
    assert list(frame) == [
        *("start", "stop", "decision", "probability_eyes_open", "probability_eyes_closed", "stretch", "short"),
    ]
    assert frame["decision"].tolist() == ["eyes open", "eyes closed", "eyes closed"]  # 0.5 decides: 0.2, 0.6, 1.0
    assert frame["stop"].tolist() == [2.0, 4.0, 6.0]
    assert repr(prediction()) == "<Prediction: seizure (mean probability of seizure 0.600); 3 windows of 2 s>"
    values = prediction(("x", "y"), "regression").to_frame()
    assert list(values)[2:4] == ["value_x", "value_y"]
    assert values["value_y"].to_numpy().tolist() == prediction().output[:, 1].tolist()


def test_an_embedding_as_a_frame():
    features = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    frame = Embedding(features, np.array([0.0, 5.0]), 5.0, ("Cz", "Pz", "Oz")).to_frame()
    assert list(frame) == ["channel", "start", "f0", "f1", "f2", "f3"]
    assert frame["channel"].tolist() == ["Cz", "Pz", "Oz"] * 2
    assert frame["start"].tolist() == [0.0] * 3 + [5.0] * 3
    assert np.array_equal(frame[["f0", "f1", "f2", "f3"]].to_numpy(), features.reshape(6, 4))
    found = Embedding(np.zeros((1000, 192), np.float32), np.arange(1000.0), 5.0, ("Cz",))
    assert repr(found) == "<Embedding: 1,000 windows of 5 s, 192 features each>"
    assert len(found._repr_html_()) < 10_000
    assert f"{1000 - ROWS} more rows and {193 - COLUMNS} more columns: to_frame() has all" in found._repr_html_()


def test_columns_have_names_that_python_can_say():
    names = column_names(["eyes open", "eyes_open", "é", "", "a-b/c", "=1+1"], "mean")
    assert names == ["mean_eyes_open", "mean_eyes_open_2", "mean_é", "mean_unnamed", "mean_a_b_c", "mean_1_1"]
    assert all(name.isidentifier() for name in names)
    assert by_column([{"a": 1}, {"b": 2}]) == {"a": [1, None], "b": [None, 2]}


class Numbers(Shown):
    def _headline(self):
        return "numbers"

    def _columns(self):
        return {"n": [1, 1.5, None, float("nan"), float("inf"), True, np.float32(0.1), 1234567]}


def test_numbers_are_short_and_missing_ones_empty():
    cells = re.findall("<td>(.*?)</td>", Numbers()._repr_html_())
    assert cells == ["1", "1.5", "", "nan", "inf", "True", "0.1", "1,234,567"]


def test_without_pandas_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="no frame can be made: the package pandas is not installed; pip install"):
        Numbers().to_frame()
    assert "<table>" in Numbers()._repr_html_()
