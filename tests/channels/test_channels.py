"""Channel labels: known answers one by one, policies, the text of every error, and that nothing is silent."""

import csv
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_eeg.channels.match import POSITIONS, VOCABULARY, Channel, match, parse, spread
from cerebro_eeg.channels.names import ALIASES, clean
from cerebro_eeg.channels.report import OUTCOMES
from cerebro_eeg.errors import ChannelError

TEN_TWENTY = "FP1 FP2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T3 T4 T5 T6 A1 A2 FZ CZ PZ"
TEMPLE = [f"EEG {name}-REF" for name in f"{TEN_TWENTY} T1 T2".split()]
TRAINED = {parse(name).channel.name: 9 for name in TEN_TWENTY.split()}
NAMES = st.sampled_from(VOCABULARY)
CHANNELS = st.one_of(
    st.builds(Channel, NAMES),
    st.tuples(NAMES, NAMES).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: Channel(*pair)),
)


def read_answers():
    with open(Path(__file__).with_name("labels.csv"), encoding="ascii", newline="") as file:
        for row in csv.DictReader(file):
            label = row["label"]
            if row["family"] == "escaped":
                label = label.encode().decode("unicode_escape")
            yield pytest.param(
                label, row["flags"], row["expected"], id=f"{row['family']}-{row['flags']}-{row['label']}"
            )


def place(name, radius=0.095, centre=(0.0, 0.0, 0.04)):
    """Where an electrode sits on a head in metres."""
    return tuple(c + radius * v for c, v in zip(centre, POSITIONS[name], strict=True))


def message(*args, **options):
    with pytest.raises(ChannelError) as caught:
        match(*args, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


# ---- one label


@pytest.mark.parametrize(("label", "flags", "expected"), list(read_answers()))
def test_known_answer(label, flags, expected):
    reading = parse(label, biosemi="biosemi" in flags, bipolar_ears="bipolar_ears" in flags)
    assert (reading.channel.name if reading.channel else f"!{reading.outcome}") == expected


def test_there_are_many_known_answers():
    answers = list(read_answers())
    assert len(answers) >= 300
    assert sum(answer.values[2].startswith("!") for answer in answers) >= 150


@pytest.mark.parametrize(
    ("label", "outcome", "reference", "note"),
    [
        ("Fp1", "matched", None, ""),
        ("EEG T3-REF", "renamed", "REF", "T3=T7; reference REF"),
        ("C3-M2", "reference", "M2", "reference M2"),
        ("C3-(M1+M2)/2", "matched", "(M1+M2)/2", "reference (M1+M2)/2"),
        ("F7-T3", "bipolar", None, "T3=T7"),
        ("T8-P8-1", "bipolar", None, "copy -1 of an equal label"),
        ("E5", "positional", None, "a number, not a place"),
        ("\u0421z", "unknown", None, "has the character U+0421, which no electrode name has"),
        ("EKG1", "not_eeg", None, "heart"),
    ],
)
def test_reading_says_how(label, outcome, reference, note):
    reading = parse(label)
    assert (reading.outcome, reading.reference, reading.note) == (outcome, reference, note)


def test_labels_must_be_text():
    with pytest.raises(ChannelError, match="must be text, got 3"):
        parse(3)


@given(st.text(max_size=20))
def test_any_text_is_read_and_never_matched_by_chance(text):
    reading = parse(text)
    assert "\n" not in reading.label
    if reading.channel is not None:
        # All that is left of a matched label is its electrodes' names (or old names), wrapping and a reference.
        upper = clean(text).upper()
        old = {new: [new.upper(), *(a for a, b in ALIASES.items() if b == new)] for new in VOCABULARY}
        assert any(name in upper for name in old[reading.channel.anode])


ATOMS = [
    "EEG ",
    "POL ",
    "-",
    "REF",
    "LE",
    "A1",
    "M2",
    "0",
    "1",
    ".",
    "/",
    "Fp1",
    "fz",
    "T3",
    "P8",
    "h",
    "z",
    "X",
    " ",
    "E",
]


@given(st.lists(st.sampled_from(ATOMS), max_size=7).map("".join))
def test_texts_close_to_labels_match_only_what_they_name(text):
    """An oracle written apart: take the wrapping off a matched label by one expression and look at the rest."""
    reading = parse(text)
    if reading.channel is None:
        return
    name = "FP1H?|FZ|T3|P8H?|A1|M2"
    form = re.fullmatch(
        rf"(?:(?:EEG|POL)[ .\-])?(?P<anode>{name})(?: ?(?P<join>[-/ ]?) ?(?P<other>{name}|REF|LE))?(?:-[01]+)?[. ]*",
        clean(text).upper(),
    )
    assert form is not None
    assert reading.channel.anode.upper() == ALIASES.get(form["anode"], form["anode"])
    if reading.channel.cathode is not None:
        assert form["join"] == "-"
        assert reading.channel.cathode.upper() == ALIASES.get(form["other"], form["other"])


@given(CHANNELS, st.sampled_from(["{}", "EEG {}", "POL {}", " {} ", "{}\x00", "eeg {}"]), st.booleans())
def test_every_channel_is_read_from_its_own_name(channel, wrap, upper):
    name = channel.name.upper() if upper else channel.name
    assert parse(wrap.format(name), bipolar_ears=True).channel == channel


@given(CHANNELS)
def test_ids_name_both_electrodes(channel):
    assert VOCABULARY[channel.ids[0] - 1] == channel.anode
    assert channel.ids[0] >= 1
    assert (channel.ids[1] == 0) == (channel.cathode is None)


def test_a_pair_has_a_direction():
    assert parse("FP1-F7").channel != parse("F7-FP1").channel
    assert Channel("Fp1", "F7").ids == (1, 3)
    assert Channel("Fp1").ids == (1, 0)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("T3",), "'T3' is not the canonical name of an electrode; write 'T7'"),
        (("X1",), "'X1' is not the canonical name"),
        (("Cz", "Cz"), "two different electrodes, got Cz twice"),
    ],
)
def test_a_channel_refuses_other_names(names, text):
    with pytest.raises(ChannelError, match=text):
        Channel(*names)


# ---- a whole recording


def test_a_temple_file():
    found = match([*TEMPLE, "EEG EKG1-REF", "PHOTIC-REF", "IBI"])
    assert found.names[:3] == ["Fp1", "Fp2", "F3"]
    assert found.names[12:18] == ["T7", "T8", "P7", "P8", "A1", "A2"]
    assert found.index == tuple(range(23))
    assert found.ids[0] == (1, 0)
    assert found.summary() == (
        "23 channels: 19 matched, 4 renamed (T3=T7, T4=T8, T5=P7, T6=P8); 3 not EEG (EKG1, PHOTIC, IBI)"
    )
    assert found.missing(["Fp1", "T3", "OZ", "Fp1-F7"]) == ["Oz", "Fp1-F7"]


def test_the_report_names_every_label():
    labels = ["T3", "C3-M2", "Fp1-F7", "X1", "EKG", "Cz", "CZ", "E5", "Oz"]
    found = match(
        labels, unknown="drop", duplicates="first", trained={n: 1 for n in VOCABULARY if n != "Oz"}, untrained="drop"
    )
    assert [row.label for row in found.rows] == labels
    assert [row.index for row in found.rows] == list(range(9))
    outcomes = "renamed reference bipolar dropped not_eeg matched duplicate dropped dropped"
    assert " ".join(row.outcome for row in found.rows) == outcomes
    assert {row.outcome for row in found.rows} <= set(OUTCOMES)
    lines = found.table().splitlines()
    assert len(lines) == 10
    assert all(label in line for label, line in zip(labels, lines[1:], strict=True))
    assert len({line.index("note") for line in lines[:1]} | {lines[2].index("reference M2")}) == 1
    assert found.names == ["T7", "C3", "Fp1-F7", "Cz"]
    assert found.rows[1].reference == "M2"
    for label in labels[3:5] + labels[6:]:
        assert label in found.summary()
    assert "\n" not in found.summary()


def test_control_characters_never_reach_the_report():
    found = match(["Fp1\x00\x00", "Cz\x1b", "EKG\n1"])
    assert [row.label for row in found.rows] == ["Fp1", "Cz", "EKG 1"]


@given(st.permutations([*TEMPLE, "EKG", "X1", "Fp1-F7"]))
def test_order_does_not_matter(labels):
    found = match(labels, unknown="drop")
    assert {row.label: (row.outcome, row.channel) for row in found.rows} == {
        row.label: (row.outcome, row.channel) for row in match(sorted(labels), unknown="drop").rows
    }
    assert [labels[i] for i in found.index] == [row.label for row in found.rows if row.channel]


def test_numpy_strings_are_labels():
    numpy = pytest.importorskip("numpy")
    assert match(numpy.array(["Fp1", "Cz"])).names == ["Fp1", "Cz"]


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ("Fp1", "single text 'Fp1'; write ['Fp1']"),
        ([], "labels is empty"),
        (["Fp1", 3], "got 3 of type int"),
        (["EKG", "EMG"], "no EEG channel is left of 2 labels: 0 channels; 2 not EEG (EKG, EMG)"),
    ],
)
def test_labels_that_are_no_list_of_labels(labels, text):
    assert text in message(labels)


@pytest.mark.parametrize("name", ["unknown", "untrained", "duplicates", "too_many"])
def test_a_policy_that_does_not_exist(name):
    text = message(["Fp1"], **{name: "guess"})
    assert f"{name}='guess'" in text
    assert "'error'" in text


@pytest.mark.parametrize("number", [0, -3, 2.5, True, None])
def test_max_channels_is_a_count(number):
    assert "max_channels must be a whole number" in message(["Fp1"], max_channels=number)


@pytest.mark.parametrize("limit", [0, -5, math.nan])
def test_limit_is_a_distance(limit):
    assert "limit_mm must be a distance" in message(["Fp1"], limit_mm=limit)


# ---- the file decides what A1, C3 and E1 are


def test_earlobes_without_biosemi():
    assert match(["A1", "A2", "Cz"]).names == ["A1", "A2", "Cz"]
    assert match(["C3-A1", "A2", "F4"]).names == ["C3", "A2", "F4"]


@pytest.mark.parametrize("other", ["A3", "B1", "A17", "EEG A3", "B1-REF"])
def test_biosemi_by_its_other_labels(other):
    text = message(["A1", other, "Fz"])
    assert "2 of 3" in text
    assert f"'A1', {other!r} (a number, not a place)" in text
    assert match(["A1", other, "Fz"], unknown="drop").names == ["Fz"]


@pytest.mark.parametrize("odd", ["EEG A3-REF", "A3", "EEG B1-REF", "A31-LE"])
def test_ears_stay_ears_beside_an_odd_number_in_a_clinical_file(odd):
    names = "FP1 FP2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T3 T4 T5 T6 A1 A2 FZ CZ PZ T1 T2".split()
    found = match([*(f"EEG {name}-REF" for name in names), odd], unknown="drop")
    assert {"A1", "A2", "C3"} <= set(found.names)
    assert found.rows[-1].outcome == "dropped"
    caps = [f"A{number}" for number in range(1, 33)]
    assert "32 of 36" in message([*caps, "EXG1", "Fp1", "M1", "M2"])


def test_biosemi_128_takes_c_and_d_too():
    labels = [f"{letter}{number}" for letter in "ABCD" for number in range(1, 33)]
    assert "128 of 128" in message(labels)
    assert "'C3', 'C4'" in message([f"C{number}" for number in range(1, 33)])


def test_a_reference_is_no_earlobe_in_a_biosemi_file():
    assert "'C3-A2'" in message(["C3-A2", "A3", "B1"])


def test_c7_beside_named_electrodes_does_not_make_a_biosemi_file():
    assert match(["C3", "Cz", "C7"], unknown="drop").names == ["C3", "Cz"]


def test_eyes_of_sleep_files_and_numbers_of_nets():
    assert [row.outcome for row in match(["C3-M2", "E1", "E2"]).rows] == ["reference", "not_eeg", "not_eeg"]
    assert "'E1'" in message(["Cz", "E1", "E2", "E3"])
    assert "'E1'" in message(["E1", "E2"])


# ---- unknown


def test_unknown_is_an_error_that_lists_all_and_names_the_policies():
    text = message(["Fp1", "C3P", "X1", "E5", "FCx"])
    for part in (
        "4 of 5",
        "'C3P' (did you mean C3?)",
        "'X1'",
        "'E5' (a number",
        "'FCx' (did you mean FC",
        "unknown='drop'",
    ):
        assert part in text
    assert "unknown='nearest'" in text


def test_all_of_many_unknown_labels_are_listed():
    labels = [f"E{number}" for number in range(1, 129)]
    text = message(labels)
    assert all(f"'{label}'" in text for label in labels)


def test_unknown_drop():
    found = match(["Fp1", "X1"], unknown="drop")
    assert found.names == ["Fp1"]
    assert found.rows[1].note == "not understood: not a known name"


def test_nearest_without_positions():
    text = message(["Fp1", "X1"], unknown="nearest")
    assert "'X1' (no position)" in text
    assert "1 of them have none" in text
    assert "unknown='nearest_or_drop'" in text


def test_nearest_for_a_whole_net():
    names = [*VOCABULARY[:19], "AFF5h", "TP9"]
    labels = [f"E{number}" for number in range(1, len(names) + 1)]
    found = match(labels, positions=[place(name, 0.088, (0.002, 0.01, 0.05)) for name in names], unknown="nearest")
    assert found.names == names
    assert {row.outcome for row in found.rows} == {"nearest"}
    assert found.rows[0].note == "0 mm from Fp1 by position"


def test_nearest_takes_no_electrode_twice():
    positions = [place("Cz"), place("Cz"), place("Fz"), place("Oz"), place("T7"), place("T8")]
    text = message(["X1", "Cz", "Fz", "Oz", "T7", "T8"], positions=positions, unknown="nearest")
    assert "'X1' (nearest to Cz, which is another channel)" in text
    labels = ["X1", "X2", "Fz", "Oz", "T7", "T8"]
    twins = match(labels, positions=positions, unknown="nearest_or_drop")
    assert twins.names == ["Fz", "Oz", "T7", "T8"]
    assert twins.rows[0].note == "not understood: nearest to Cz, as another electrode"
    found = match(labels, bads=["X2"], positions=positions, unknown="nearest")
    assert found.names == ["Cz", "Fz", "Oz", "T7", "T8"]
    bad = match(["X1", "Cz", "Fz", "Oz", "T7", "T8"], bads=["Cz"], positions=positions, unknown="nearest_or_drop")
    assert bad.names == ["Fz", "Oz", "T7", "T8"], "the name of a bad channel is taken, too"


@settings(max_examples=3, deadline=None)
@given(st.permutations(range(12)))
def test_nearest_does_not_depend_on_order(order):
    names = ["Fp1", "F3", "Cz", "Cz", "AFF5h", "TP9", "Oz", "T7", "T8", "Fz", "C4", "P3"]
    labels = [f"X{i}" if i < 6 else name for i, name in enumerate(names)]
    how = {"unknown": "nearest_or_drop"}
    plain = match(labels, positions=[place(name) for name in names], **how)
    mixed = match([labels[i] for i in order], positions=[place(names[i]) for i in order], **how)
    assert {r.label: r.channel for r in mixed.rows} == {r.label: r.channel for r in plain.rows}


@pytest.mark.parametrize("name", ["Pg1", "F11", "Sp2"])
def test_nearest_stays_on_the_scalp(name):
    rest = ["Cz", "Fz", "Oz", "T7", "T8"]
    positions = [place(name), *map(place, rest)]
    text = message(["X1", *rest], positions=positions, unknown="nearest")
    assert "'X1' (no free electrode within 25 mm)" in text
    found = match(["X1", *rest], positions=positions, unknown="nearest_or_drop")
    assert found.names == rest
    assert found.rows[0].note == "not understood: no free electrode within 25 mm"


def test_nearest_beside_an_ear_is_a_scalp_electrode():
    rest = ["Cz", "Fz", "Oz", "T7", "T8"]
    found = match(["X1", *rest], positions=[place("A1"), *map(place, rest)], unknown="nearest_or_drop")
    assert found.rows[0].channel == Channel("T9")
    assert found.rows[0].note == "25 mm from T9 by position"


@pytest.mark.parametrize(
    ("hole", "why"),
    [(None, "no position"), ((math.nan,) * 3, "its position is NaN"), ((0.0, 0, 0), "no position (all zero)")],
)
def test_a_missing_position_is_reported(hole, why):
    rest = ["Cz", "Fz", "Oz", "T7", "T8"]
    positions = [hole, *map(place, rest)]
    assert f"'X1' ({why})" in message(["X1", *rest], positions=positions, unknown="nearest")
    found = match(["X1", *rest], positions=positions, unknown="nearest_or_drop")
    assert found.rows[0].note == f"not understood: {why}"
    assert match(["Cz", "Fz"], positions=[hole, place("Fz")], unknown="nearest").names == ["Cz", "Fz"]


def test_few_positions_do_not_tell_how_the_head_is_turned():
    text = message(["X1", "Cz"], positions=[place("Fz"), None], unknown="nearest")
    assert "1 positions are too few, or not those of a head, to tell how it is turned" in text
    names = ["Fp1", "F3", "Cz", "P4", "Oz"]
    assert "'E0'" in message([f"E{i}" for i in range(5)], positions=[place(name) for name in names], unknown="nearest")


def test_nearest_uses_trained_electrodes_only():
    rest = ["T7", "T8", "C3", "C4", "Fz", "Pz", "P3", "F4"]
    labels = ["E1", "E2", "E3", *rest]
    positions = [place(name) for name in ("FC1h", "Cz", "Oz", *rest)]
    trained = {"FC1": 5, "FC1h": 0, **dict.fromkeys(("Cz", "Oz", *rest), 1)}
    assert match(labels, positions=positions, unknown="nearest", trained=trained).names[0] == "FC1"
    free = match(labels, positions=positions, unknown="nearest", trained=trained, untrained="as_is")
    assert free.names[0] == "FC1h"


@pytest.mark.parametrize(
    ("positions", "text"),
    [
        ([(0, 0, 90.0), (0, 90.0, 40)], "positions must be in metres"),
        ([(0, 0, 1.0), (0, 1.0, 0)], "a unit sphere * 0.095"),
        ([(0, 0, 0.1)], "one entry for each of the 2 labels, got 1"),
        ([(0, 0.1), None], "(x, y, z) in metres, got 2 numbers"),
    ],
)
def test_positions_that_are_none(positions, text):
    assert text in message(["Cz", "X1"], positions=positions, unknown="nearest")


def test_positions_in_another_frame():
    names = ["Cz", "Fz", "Oz", "T7", "T8", "F3"]
    turned = [(y, -x, z) for x, y, z in map(place, names)]
    assert "degrees off; expected x right" in message([*names[:5], "X1"], positions=turned, unknown="nearest")


def test_an_error_counts_the_positions_that_are_there():
    text = message(["X1", "Fz", "Y1"], positions=[place("Cz"), None, (90.0, 0.0, 0.0)])
    assert "2 of 3 channel labels" in text
    assert "by electrode position; 2 have one" in text


# ---- untrained


def test_untrained_is_an_error():
    text = message(["Fp1", "AF3", "F7-FT9"], trained=TRAINED)
    for part in ("2 of 3", "'AF3' (no training of AF3)", "'F7-FT9' (no training of FT9)", "untrained='nearest'"):
        assert part in text
    assert "untrained='drop'" in text
    assert "untrained='as_is'" in text
    assert match(["Fp1", "AF3"], trained=None).names == ["Fp1", "AF3"]


def test_untrained_drop_and_as_is():
    dropped = match(["Fp1", "AF3"], trained=TRAINED | {"AF3": 0}, untrained="drop")
    assert dropped.names == ["Fp1"]
    assert dropped.rows[1].outcome == "dropped"
    assert "never trained" in dropped.rows[1].note
    kept = match(["Fp1", "AF3"], trained=TRAINED, untrained="as_is")
    assert kept.names == ["Fp1", "AF3"]
    assert kept.rows[1].outcome == "untrained"
    assert "untrained (AF3)" in kept.summary()


def test_untrained_nearest_on_an_emotiv_headset():
    labels = ["AF3", "F7", "F3", "FC5", "T7", "P7", "O1", "O2", "P8", "T8", "FC6", "F4", "F8", "AF4"]
    found = match(labels, trained=TRAINED, untrained="nearest")
    assert dict(zip(labels, found.names, strict=True)) == {n: n for n in labels} | {
        "AF3": "Fp1",
        "AF4": "Fp2",
        "FC5": "C3",
        "FC6": "C4",
    }
    assert "AF3 never trained, Fp1 is" in found.rows[0].note


def test_untrained_nearest_gives_no_ear_to_the_scalp():
    labels = ["T7", "TP9"]
    text = message(labels, trained={"T7": 1, "A1": 1, "M1": 1}, untrained="nearest")
    assert "'TP9'" in text
    assert "within 50 mm" in text
    assert match(["M1", "Cz"], trained={"A1": 1, "Cz": 1}, untrained="nearest").names == ["A1", "Cz"]


def test_untrained_nearest_for_pairs():
    found = match(["F7-FT9", "T7-P7"], trained={"F7": 1, "T7": 1, "P7": 1}, untrained="nearest")
    assert found.names == ["F7-T7", "T7-P7"]
    assert "'FT9-P7'" in message(["T7-P7", "FT9-P7"], trained={"T7": 1, "P7": 1}, untrained="nearest")


def test_trained_must_have_canonical_names():
    assert "canonical electrode names, got 'T3'" in message(["T7"], trained={"T3": 5})


# ---- duplicates, pick, too many


def test_duplicates_are_an_error_naming_both():
    assert "'T3' and 'T7' are both T7" in message(["T3", "T7"])
    text = message(["T8-P8-0", "Fz-Cz", "T8-P8-1"])
    assert "'T8-P8-0' and 'T8-P8-1' are both T8-P8" in text
    assert "duplicates='first'" in text


def test_duplicates_first():
    found = match(["T8-P8-0", "Fz-Cz", "T8-P8-1"], duplicates="first")
    assert found.names == ["T8-P8", "Fz-Cz"]
    assert found.index == (0, 1)
    assert found.rows[2].note == "the same channel as T8-P8-0 (label 0)"


def test_a_pair_is_no_duplicate_of_its_mirror():
    assert match(["Fp1-F7", "F7-Fp1", "Fp1"]).names == ["Fp1-F7", "F7-Fp1", "Fp1"]


def test_pick_in_any_spelling():
    found = match([*TEMPLE, "X1", "EKG"], pick=["fp1", "T7", "EEG CZ-REF"])
    assert found.names == ["Fp1", "T7", "Cz"]
    assert [row.outcome for row in found.rows].count("not_picked") == 21
    assert found.rows[24].outcome == "not_eeg"


def test_pick_by_label_settles_duplicates():
    assert match(["T8-P8-0", "Fz-Cz", "T8-P8-1"], pick=["T8-P8-1", "FZ-CZ"]).index == (1, 2)
    assert "are both" in message(["T8-P8-0", "T8-P8-1"], pick=["T8-P8"])


def test_pick_what_is_not_there():
    text = message(["Fp1", "Cz"], pick=["Fp2", "Cz"])
    assert "pick asks for 'Fp2' (did you mean Fp1?), which this recording does not have; it has Fp1, Cz" in text
    assert "not EEG (heart)" in message(["Fp1", "EKG"], pick=["EKG"])
    assert "pick is empty" in message(["Fp1"], pick=[])
    assert "pick must be a list" in message(["Fp1"], pick="Fp1")


def test_pick_before_and_after_nearest():
    names = VOCABULARY[:19]
    labels = [f"E{i}" for i in range(19)]
    options = {"positions": [place(name) for name in names], "unknown": "nearest"}
    assert match(labels, pick=["E2", "E3"], **options).names == ["F7", "F3"]
    assert match(labels, pick=["Cz"], **options).index == (9,)
    assert "'Oz'" in message(labels, pick=["Oz"], **options)


def test_too_many_channels():
    labels = list(VOCABULARY[:70])
    text = message(labels)
    for way in (
        "70 channels, at most 64",
        "max_channels=70",
        "pick=[...]",
        "too_many='nearest'",
        "64 spread-out electrodes",
    ):
        assert way in text
    assert len(match(labels, max_channels=70).channels) == 70
    found = match(labels, too_many="nearest")
    assert len(found.channels) == 64
    assert set(VOCABULARY[:19]) <= set(found.names)
    assert [row.outcome for row in found.rows].count("too_many") == 6
    assert len(match(labels, pick=labels[:5]).channels) == 5


def test_spread():
    channels = [Channel(name) for name in VOCABULARY[:100]]
    assert set(spread(channels, 19)) == set(channels[:19])
    assert spread(channels[:5]) == tuple(channels[:5])
    assert len(spread(channels, 64)) == 64
    pairs = [Channel("Fp1", "F7"), Channel("F7", "Fp1"), Channel("O1", "O2"), Channel("T7", "T8")]
    assert len(spread(pairs, 3)) == 3
    with pytest.raises(ChannelError, match="at least 1"):
        spread(channels, 0)


def test_missing_refuses_what_is_no_channel():
    with pytest.raises(ChannelError, match="got 'FCx'"):
        match(["Fp1"]).missing(["FCx"])


# ---- the module itself


def test_only_the_standard_library_is_imported():
    code = "import sys, cerebro_eeg.channels.match; print(*{'numpy', 'torch', 'mne'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_recording_of_the_open_pack(open_eeg):
    """Our reading of the labels is the pack's own reading, one file for each set of labels."""
    numpy = pytest.importorskip("numpy")
    seen = set()
    for path in sorted(open_eeg.glob("data/*/*.npz")):
        with numpy.load(path, allow_pickle=False) as file:
            names, standard = tuple(map(str, file["ch_names"])), list(map(str, file["ch_std"]))
        if (path.parent.name, names) not in seen:
            seen.add((path.parent.name, names))
            assert match(names).names == standard, path
    assert len(seen) >= 5
