"""Names by position on the heads and caps of MNE: right or refused, however the head is turned, moved and measured."""

import mne
import numpy as np
import pytest

from cerebro_eeg.channels.alignment import cap_names
from cerebro_eeg.channels.electrodes import GRID, POSITIONS, TEN_TEN, TEN_TWENTY, distance_mm, fit_sphere
from cerebro_eeg.channels.match import match
from cerebro_eeg.channels.names import electrode
from cerebro_eeg.data.reading.formats import open_recording
from cerebro_eeg.errors import ChannelError

# The names that MNE had before 1.13 stand for Colin's head.
STANDARD = {
    "standard_1005": "colin27_1005",
    "standard_1020": "colin27_1020",
    "standard_alphabetic": "colin27_alphabetic",
}


def montage_of(name):
    known = mne.channels.get_builtin_montages()
    return mne.channels.make_standard_montage(name if name in known else STANDARD[name])


def positions_of(name):
    """The positions of a montage as a Raw has them, in metres."""
    montage = montage_of(name)
    info = mne.create_info(montage.ch_names, 100.0, "eeg")
    info.set_montage(montage)
    return {channel["ch_name"]: channel["loc"][:3] for channel in info["chs"]}


def named_of(name):
    """Those with the name of an electrode, by it; the old names T3 to T6 lie where T7 to P8 are."""
    found = {
        electrode(label): place for label, place in positions_of(name).items() if label not in ("T3", "T4", "T5", "T6")
    }
    return {label: place for label, place in found.items() if label in GRID}


def turned(places, rng, *, noise=0.0):
    """Up to 10 degrees about each axis, 10 % larger or smaller, 2 cm aside."""
    out = np.array(places)
    for axis, angle in enumerate(np.radians(rng.uniform(-10, 10, 3))):
        a, b = [i for i in range(3) if i != axis]
        out[:, [a, b]] = out[:, [a, b]] @ [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
    return out * rng.uniform(0.9, 1.1) + rng.uniform(-0.012, 0.012, 3) + rng.normal(0, noise, out.shape)


def by_position(names, places, known=()):
    """Hide all names but ``known``; return how many electrodes were named again. A wrong name is an error."""
    labels = [name if name in known else f"X{number}" for number, name in enumerate(names)]
    try:
        found = match(labels, positions=places, unknown="nearest_or_drop", max_channels=400)
    except ChannelError:
        return 0
    for row, name in zip(found.rows, names, strict=True):
        assert row.channel is None or row.channel.name == name, f"{name} became {row.channel.name}, {row.note}"
        if row.channel is None:
            assert row.note.startswith("not understood: ")
    return len(found.channels) - len(known)


def some(there, kind, rng):
    names = [name for name in TEN_TEN if name in there]
    if kind == "19":
        return [name for name in TEN_TWENTY if name in there]
    if kind == "64":
        return names[:64]
    if kind == "few":
        return [str(name) for name in rng.permutation(names)[: rng.integers(5, 13)]]
    if kind == "mixed":
        return list(dict.fromkeys([*names[:19], *map(str, rng.permutation(list(there))[:12])]))
    return [str(name) for name in rng.permutation(list(there))[: rng.integers(60, 128)]]


@pytest.mark.parametrize(
    "name",
    ["standard_1005", "standard_1020", "fsaverage_1005", "biosemi16", "biosemi32", "easycap-M1", "spherical_1020"],
)
def test_the_electrodes_of_the_ten_twenty_system_are_all_found(name):
    there = named_of(name)
    names = some(there, "19", None)
    assert by_position(names, [there[label] for label in names]) == len(names)
    rng = np.random.default_rng(len(name))
    assert by_position(names, turned([there[label] for label in names], rng)) >= len(names) - 1


@pytest.mark.parametrize(("name", "kind"), [("standard_1005", "64"), ("biosemi64", "64")])
def test_larger_caps_are_right_or_refused(name, kind):
    rng = np.random.default_rng(0)
    there = named_of(name)
    names = some(there, kind, rng)
    found = by_position(names, turned([there[label] for label in names], rng, noise=0.0015))
    assert found > 0.9 * len(names)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(60))
def test_any_head_and_any_electrodes_are_right_or_refused(seed):
    rng = np.random.default_rng(seed)
    heads = ["standard_1005", "fsaverage_1005", "biosemi64", "easycap-M1", "spherical_1005", "brainproducts-RNP-BA-128"]
    there = named_of(str(rng.choice(heads)))
    names = some(there, str(rng.choice(["19", "64", "few", "mixed", "dense"])), rng)
    known = {str(name) for name in rng.permutation(names)[: rng.choice([0, 0, 1, 3, 6])]}
    noise = rng.choice([0.0, 0.001, 0.002, 0.003])
    by_position(names, turned([there[label] for label in names], rng, noise=noise), known)


def test_few_electrodes_with_noise_are_right_or_refused():
    there = named_of("standard_1005")
    for seed in range(4):
        rng = np.random.default_rng(seed)
        names = some(there, "few", rng)
        by_position(names, turned([there[label] for label in names], rng, noise=0.002), known=names[: seed % 3])


def test_known_names_turn_the_head():
    there = named_of("standard_1005")
    names = ["Fz", "C3", "C4", "Pz", "T7", "O2", "F8", "P7", "Cz", "F3", "P8"]
    places = turned([there[label] for label in names], np.random.default_rng(3))
    assert by_position(names, places, known=names[:8]) == 3


@pytest.mark.parametrize("name", ["biosemi128", pytest.param("biosemi160", marks=pytest.mark.soak)])
def test_numbered_caps_of_biosemi_are_turned_by_their_known_electrodes(name):
    """Only names of the 10-10 system are given, one electrode each, and the distance is that to the site."""
    there = positions_of(name)
    centre, _ = fit_sphere([tuple(place) for place in there.values()])
    places = turned(list(there.values()), np.random.default_rng(1))
    found = match(list(there), positions=places, unknown="nearest_or_drop", max_channels=200)
    assert len(found.names) == len(set(found.names)) > 40
    for row in found.rows:
        if row.channel is not None:
            true = distance_mm(tuple(there[row.label] - centre), POSITIONS[row.channel.anode])
            said = float(row.note.split(" mm")[0])
            assert abs(true - said) < 5
            assert true < 15
    assert {"Cz", "Fz", "Pz", "Oz", "C3", "C4", "T7", "T8"} <= set(found.names)
    assert cap_names(["A1", "A2", "Cz"]) == {}


@pytest.mark.parametrize(
    "name", ["GSN-HydroCel-64_1.0", pytest.param("GSN-HydroCel-128", marks=pytest.mark.soak), "easycap-M10"]
)
def test_nets_with_places_of_their_own_are_refused_without_names(name):
    there = positions_of(name)
    labels = [f"X{number}" for number in range(len(there))]
    with pytest.raises(ChannelError, match="too few have names to tell how the head is turned"):
        match(labels, positions=list(there.values()), unknown="nearest")


@pytest.mark.parametrize("name", ["GSN-HydroCel-64_1.0", "GSN-HydroCel-128", "GSN-HydroCel-129", "GSN-HydroCel-256"])
def test_a_geodesic_net_is_named_by_its_makers_table_where_positions_agree(name):
    """Its electrodes lie between the sites; 19 of them stand for the 10-20 system. Other numberings are refused."""
    there = positions_of(name)
    places = list(there.values())
    found = match(list(there), positions=places, unknown="nearest_or_drop", max_channels=300)
    wanted = {*TEN_TWENTY, "Oz"} if name.endswith("129") else {*TEN_TWENTY, "Oz"} - {"Cz"}
    assert set(found.names) == wanted
    assert all(float(row.note.split(" mm")[0]) <= 22 for row in found.rows if row.outcome == "nearest")
    with pytest.raises(ChannelError):
        match(list(there), positions=places[1:] + places[:1], unknown="nearest", max_channels=300)


def test_a_recording_is_told_how_many_positions_it_has():
    """A file whose 19 channels all have positions was told that none has."""
    there = named_of("standard_1005")
    names = [name for name in TEN_TWENTY if name in there]
    labels = [f"EEG{number:03d}" for number in range(1, len(names) + 1)]
    raw = mne.io.RawArray(np.zeros((len(names), 100)), mne.create_info(labels, 100.0, "eeg"), verbose="error")
    places = {label: there[name] for label, name in zip(labels, names, strict=True)}
    raw.set_montage(mne.channels.make_dig_montage(places, coord_frame="head"))
    with pytest.raises(ChannelError, match="by electrode position; 19 have one"):
        open_recording(raw)
