"""Mains: one decision for a data set, or for each subject where they differ, made once and taken by everybody."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cerebro_eeg.channels.match import match
from cerebro_eeg.commands.info_store import info_store
from cerebro_eeg.data.datasets.openeeg import openeeg
from cerebro_eeg.data.filtering.plan import estimate_mains
from cerebro_eeg.data.reading.recording import ChannelPolicy, Recording, Segment
from cerebro_eeg.data.storing.mains import NAME, decide
from cerebro_eeg.data.storing.prepare import prepare
from cerebro_eeg.data.storing.recipe import Item, Recipe
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import PassingFault, StoreError

RATE = 250.0
WEAK = 2.5
"""Microvolts of a line that the estimate of a single recording finds in most places and not in all."""


def opened(lines: dict[float, float], seed: int, policy: ChannelPolicy) -> Recording:
    """Twenty seconds of noise that falls with frequency, with lines of so many microvolts."""
    rng = np.random.default_rng(seed)
    size = round(20 * RATE)
    falling = np.fft.rfft(rng.normal(0, 20, (size, 3)), axis=0)
    falling /= np.maximum(np.fft.rfftfreq(size, 1 / RATE), 1.0)[:, None] ** 0.5
    signal = np.fft.irfft(falling, size, axis=0)
    time = np.arange(size) / RATE
    for line, microvolts in lines.items():
        signal += microvolts * np.sin(2 * np.pi * line * time)[:, None]
    values = signal.astype(np.float32)
    return Recording(RATE, match(["Fp1", "Cz", "O2"]), (Segment(0, size, 0.0),), lambda a, b: values[a:b].copy())


def items(*subjects: tuple[str | None, list[dict[float, float]]]) -> list[Item]:
    """Recordings with the lines of each subject."""
    return [
        Item(f"r{number}-{place}", partial(opened, lines, 100 * number + place), subject)
        for number, (subject, recordings) in enumerate(subjects)
        for place, lines in enumerate(recordings)
    ]


def recipe(items: list[Item]) -> Recipe:
    return Recipe("lines", "", partial(iter, items), own_ids=True)


def notches(folder: Path) -> dict[str, float | None]:
    return {record.id: record.mains for record in Store(folder).recordings}


FIFTY, SIXTY, NOTHING = {50.0: 8.0}, {60.0: 8.0}, dict[float, float]()


def test_all_recordings_get_what_most_show_whatever_a_single_one_shows(tmp_path):
    """The fault: of one subject one recording got 50, one 60 and one no notch."""
    many = items(*((f"s{n}", [FIFTY, {50.0: WEAK}, NOTHING]) for n in range(5)), ("s5", [FIFTY, SIXTY, NOTHING]))
    alone = {estimate_mains(item.open(ChannelPolicy())) for item in many}
    assert alone == {50.0, 60.0, None}
    said: list[str] = []
    prepare(recipe(many), tmp_path / "store", say=said.append)
    assert set(notches(tmp_path / "store").values()) == {50.0}
    assert len(said) == 1
    assert said[0].startswith("mains 50 Hz: ")
    assert said[0].endswith(" of 18 recordings looked at show it, 1 shows 60 Hz")
    assert said[0] in info_store(tmp_path / "store").text()


def test_subjects_that_plainly_differ_have_their_own(tmp_path):
    """As in a corpus of several sites; who shows nothing, or both, gets what most have, in all recordings."""
    sites = [(f"a{n}", [FIFTY, NOTHING]) for n in range(6)] + [(f"b{n}", [SIXTY, NOTHING]) for n in range(4)]
    said: list[str] = []
    unsure = ("c", [NOTHING, NOTHING]), ("d", [FIFTY, SIXTY])
    prepare(recipe(items(*sites, *unsure)), tmp_path / "store", say=said.append)
    by_subject: dict = {}
    for record in Store(tmp_path / "store").recordings:
        by_subject.setdefault(record.subject, set()).add(record.mains)
    assert by_subject == {
        **{f"a{n}": {50.0} for n in range(6)},
        **{f"b{n}": {60.0} for n in range(4)},
        **{who: {50.0} for who in "cd"},
    }
    assert "mains differs by subject: 7 of 24 recordings looked at show 50 Hz, 5 show 60 Hz" in said[0]


def test_without_subjects_recordings_that_differ_decide_for_themselves(tmp_path):
    several = items(*((None, [lines]) for lines in (FIFTY, FIFTY, SIXTY, FIFTY, SIXTY, NOTHING)))
    prepare(recipe(several), tmp_path / "store")
    assert list(notches(tmp_path / "store").values()) == [50.0, 50.0, 60.0, 50.0, 60.0, 50.0]


def test_contradictions_within_subjects_are_said(tmp_path):
    torn = items(*((f"s{n}", [FIFTY, FIFTY, SIXTY]) for n in range(4)))
    said: list[str] = []
    prepare(recipe(torn), tmp_path / "store", say=said.append)
    assert set(notches(tmp_path / "store").values()) == {50.0}
    words = "mains 50 Hz: 8 of 12 recordings looked at show it, 4 show 60 Hz; they contradict each other: check with "
    assert said == [f"{words}--mains"]


def test_where_nobody_shows_a_line_there_is_no_notch(tmp_path):
    said: list[str] = []
    prepare(recipe(items(("a", [NOTHING] * 3))), tmp_path / "store", say=said.append)
    assert set(notches(tmp_path / "store").values()) == {None}
    assert "none of 3 recordings looked at shows a line at 50 or 60 Hz; no notch" in said[0]


def test_the_decision_is_made_once(tmp_path):
    """Whoever comes later takes it: other parts, other workers, recordings that are added."""
    first, more = items(("a", [FIFTY] * 2)), items(("a", [FIFTY] * 2), ("b", [SIXTY] * 4))
    prepare(recipe(first), tmp_path / "store")
    decided = (tmp_path / "store" / NAME).read_bytes()
    prepare(recipe(more), tmp_path / "store", part=(1, 2))
    prepare(recipe(more), tmp_path / "store", part=(2, 2))
    assert (tmp_path / "store" / NAME).read_bytes() == decided
    assert set(notches(tmp_path / "store").values()) == {50.0}
    one, two = (prepare(recipe(more), tmp_path / name, workers=n) for name, n in (("one", 0), ("two", 1)))
    assert one.hash == two.hash
    (tmp_path / "store" / NAME).write_text(json.dumps({"sets": []}))
    with pytest.raises(StoreError, match=r"mains\.json of the store is damaged"):
        info_store(tmp_path / "store")


def test_a_look_that_failed_decides_nothing(tmp_path):
    """A disk that is away for a moment must not decide for ever."""

    def gone(_: ChannelPolicy) -> Recording:
        raise PassingFault("the disk is away")

    sound = items(("a", [FIFTY, NOTHING]))
    said: list[str] = []
    prepare(recipe([Item(item.name, gone, item.subject) for item in sound]), tmp_path / "store", say=said.append)
    assert said == ["mains: no recording could be looked at, so each is decided by itself"]
    prepare(recipe(sound), tmp_path / "store")
    assert set(notches(tmp_path / "store").values()) == {50.0}


def test_what_is_stated_needs_no_vote(tmp_path):
    stated = [Item(item.name, item.open, item.subject, mains=60.0) for item in items(("a", [FIFTY] * 2))]
    prepare(recipe(stated), tmp_path / "store")
    assert set(notches(tmp_path / "store").values()) == {60.0}
    assert not (tmp_path / "store" / NAME).exists()


def test_data_sets_of_the_pack_have_their_own(open_eeg):
    wanted = ("adhd", "eegmmidb", "eegmat")
    chosen = {item.name: item for item in openeeg(open_eeg).find() if item.part_of in wanted}
    few = {name: item for place, (name, item) in enumerate(chosen.items()) if place % 6 == 0 or "mmidb" in name}
    choices = decide(few, ChannelPolicy(unknown="drop")).sets
    assert {name: choice.common for name, choice in choices.items()} == {"adhd": 50.0, "eegmmidb": 60.0, "eegmat": None}
