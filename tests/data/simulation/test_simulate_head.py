"""The head of spheres against closed forms, MNE and symmetry; montages as plain algebra."""

import math

import numpy as np
import pytest

from cerebro_eeg.channels.electrodes import GRID, HEAD_MM, TEN_TWENTY
from cerebro_eeg.channels.match import match
from cerebro_eeg.data.simulation.head import (
    HOMOGENEOUS,
    MONTAGES,
    Head,
    Montage,
    electrode_positions,
    head,
    lead_field,
    montage_of,
)
from cerebro_eeg.data.simulation.recording import simulate_recording
from cerebro_eeg.errors import ChannelError, ConfigError

ELECTRODES = electrode_positions(TEN_TWENTY)


def places(count, most, seed=0):
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((count, 3))
    return directions / np.linalg.norm(directions, axis=1, keepdims=True) * rng.uniform(0.1, most, (count, 1))


def closed_form(source, electrode, conductivity, radius):
    """One sphere, without a series: Mosher, Leahy and Lewis, IEEE Trans. Biomed. Eng. 46 (1999) 245, equation for EEG.

    Metres and A m in, volts out, as the vector that is multiplied with the moment.
    """
    r0, r = source * radius, electrode * radius
    d = r - r0
    length = np.linalg.norm(d)
    f = length * (radius * length + radius**2 - r0 @ r)
    scale = 1 / (4 * math.pi * conductivity * (r0 @ r0))
    c1 = scale * (2 * (d @ r0) / length**3 + 1 / length - 1 / radius)
    c2 = scale * (2 / length**3 + (length + radius) / (radius * f))
    return (c1 - c2 * (r @ r0)) * r0 + c2 * (r0 @ r0) * r


def test_one_sphere_is_the_closed_form():
    sources = places(20, 0.85)
    expected = [[1e-3 * closed_form(s, e, 0.33, HEAD_MM / 1000) for e in ELECTRODES] for s in sources]
    np.testing.assert_allclose(lead_field(HOMOGENEOUS, sources, ELECTRODES), expected, rtol=0, atol=1e-7)


def test_shells_of_one_conductivity_are_one_sphere():
    sources = places(10, 0.8)
    shells = Head((0.9, 0.92, 0.97, 1.0), (0.33,) * 4)
    one = lead_field(HOMOGENEOUS, sources, ELECTRODES)
    np.testing.assert_allclose(lead_field(shells, sources, ELECTRODES), one, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("skull", [0.004, 0.012])
def test_four_shells_agree_with_mne(skull):
    """MNE fits three dipoles in one sphere to the shells (Berg and Scherg), which is good to a few percent."""
    import mne

    sources, radius = places(12, 0.7, seed=3), HEAD_MM / 1000
    info = mne.create_info(list(TEN_TWENTY), 100.0, "eeg")
    with info._unlock():
        for channel, place in zip(info["chs"], ELECTRODES * radius, strict=True):
            channel["loc"][:3] = place
            channel["loc"][3:6] = 0
    sphere = mne.make_sphere_model(
        (0, 0, 0), radius, info, (0.9, 0.92, 0.97, 1.0), (0.33, 1.0, skull, 0.33), verbose=False
    )
    at = {"rr": sources * radius, "nn": sources / np.linalg.norm(sources, axis=1, keepdims=True)}
    space = mne.setup_volume_source_space(pos=at, verbose=False)
    forward = mne.make_forward_solution(info, None, space, sphere, meg=False, mindist=0, verbose=False)
    theirs_ES3 = forward["sol"]["data"].reshape(len(TEN_TWENTY), -1, 3) * 1e-9 * 1e6
    ours_ES3 = lead_field(head(skull), sources, ELECTRODES).transpose(1, 0, 2)
    np.testing.assert_array_equal(forward["source_rr"], (sources * radius).astype(forward["source_rr"].dtype))
    theirs_ES3, ours_ES3 = (x - x.mean(axis=0) for x in (theirs_ES3, ours_ES3))
    error = np.linalg.norm(ours_ES3 - theirs_ES3, axis=0) / np.linalg.norm(ours_ES3, axis=0)
    assert error.max() < 0.05
    assert np.median(error) < 0.015


def test_the_head_is_the_same_from_all_sides():
    """Turning source, moment and electrode together changes nothing; the mean over the whole scalp is zero."""
    turn, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))
    sources, model = places(5, 0.8), head(0.008)
    there = lead_field(model, sources @ turn.T, ELECTRODES @ turn.T)
    np.testing.assert_allclose(there @ turn, lead_field(model, sources, ELECTRODES), atol=1e-12)
    height = 1 - (np.arange(4000) + 0.5) / 2000
    angle = math.pi * (3 - math.sqrt(5)) * np.arange(4000)
    width = np.sqrt(1 - height**2)
    scalp = np.stack([width * np.cos(angle), width * np.sin(angle), height], axis=1)
    field = lead_field(model, sources, scalp)
    assert np.abs(field.mean(axis=1)).max() < 1e-3 * np.abs(field).max()


def test_a_worse_conducting_skull_weakens_and_smears():
    source, out = ELECTRODES[9:10] * 0.8, ELECTRODES[9]
    thin, thick = (lead_field(head(skull), source, ELECTRODES)[0] @ out for skull in (0.02, 0.004))
    assert thick[9] < 0.6 * thin[9]
    assert thick[4] / thick[9] > thin[4] / thin[9]  # Fz by Cz


def test_sources_outside_of_the_brain_are_refused():
    with pytest.raises(ValueError, match="lie between"):
        lead_field(head(0.01), np.array([[0, 0, 0.95]]), ELECTRODES)


def test_labels_of_all_montages_are_read_as_their_channels():
    for name, montage in MONTAGES.items():
        assert [channel.name for channel in match(montage.labels).channels] == list(montage.channels), name
    assert MONTAGES["10-20"].labels[7] == "EEG T3-LE"


def test_weights_are_the_reference_that_they_name():
    names, matrix = Montage(("C3", "C4"), "linked ears", 100).weights()
    assert names == ("C3", "C4", "A1", "A2")
    np.testing.assert_array_equal(matrix, [[1, 0], [0, 1], [-0.5, -0.5], [-0.5, -0.5]])
    names, matrix = Montage(("C3", "C4"), "average", 100).weights()
    np.testing.assert_array_equal(matrix, [[0.5, -0.5], [-0.5, 0.5]])
    names, matrix = Montage(("C3-C4", "C4-O1"), "pairs", 100).weights()
    assert names == ("C3", "C4", "O1")
    np.testing.assert_array_equal(matrix, [[1, 0], [-1, 1], [0, -1]])
    names, matrix = Montage(("C3", "C4"), "Cz", 100).weights()
    np.testing.assert_array_equal(matrix, [[1, 0], [0, 1], [-1, -1]])


@pytest.mark.parametrize("task", ["eyes", "seizure"])
def test_montages_of_one_recording_agree_up_to_the_reference(task):
    made = {
        name: simulate_recording(5, 1, name, 200, 8.0, task)
        for name in ("10-20", "32", "64", "epoc", "muse", "bipolar")
    }

    def difference(name, a, b):
        columns = made[name].channels
        return made[name].signal_TC[:, columns.index(a)] - made[name].signal_TC[:, columns.index(b)]

    for name in ("32", "64", "epoc"):
        np.testing.assert_allclose(difference(name, "F3", "O1"), difference("10-20", "F3", "O1"), atol=1e-3)
    np.testing.assert_allclose(difference("muse", "AF7", "AF8"), difference("64", "AF7", "AF8"), atol=1e-3)
    bipolar = made["bipolar"]
    for column, pair in enumerate(bipolar.channels):
        np.testing.assert_allclose(bipolar.signal_TC[:, column], difference("10-20", *pair.split("-")), atol=1e-3)
    np.testing.assert_allclose(made["64"].signal_TC.mean(axis=1), 0, atol=1e-4)
    assert np.abs(made["10-20"].signal_TC.mean(axis=1)).max() > 1
    assert all(recording.events == made["64"].events for recording in made.values())


def test_any_montage_can_be_asked_for():
    every = Montage(GRID, "average", 250)
    assert simulate_recording(0, 0, every, seconds=4).signal_TC.shape == (1000, len(GRID))


@pytest.mark.parametrize(
    ("channels", "reference", "message"),
    [
        (("T3",), "average", "no electrode"),
        (("C3", "C4"), "nose", "no electrode"),
        (("C3", "C3"), "Cz", "twice"),
        ((), "Cz", "no channel"),
        (("C3", "Cz"), "Cz", "silence"),
        (("C3",), "average", "silence"),
    ],
)
def test_impossible_montages_are_refused(channels, reference, message):
    with pytest.raises(ChannelError, match=message):
        Montage(channels, reference, 250)
    with pytest.raises(ConfigError, match="did you mean 'muse'"):
        montage_of("mus")
