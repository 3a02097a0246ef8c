"""Views of training windows: fewer channels, another reference, no amplitude; each changes nothing else."""

import numpy as np
import pytest
import torch

from cerebro_eeg.batch import Batch
from cerebro_eeg.config import ObjectiveConfig
from cerebro_eeg.model.patches import make_patches
from cerebro_eeg.model.views import has_views, kept_counts, make_view
from tiny_models import make_windows, small

COUNTS = [5, 3, 8, 1]


def batch_of(counts=COUNTS, bipolar=False):
    windows, ids = make_windows(counts, 40)
    plain = [[(a, b if bipolar else 0) for a, b in of] for of in ids]
    signals = [torch.tensor(w, dtype=torch.float16) for w in windows]
    return Batch.ragged(
        signals, [torch.tensor(of) for of in plain], torch.tensor([5.0, 20.0, 30.0, 40.0])[: len(counts)]
    )


def noise_of(counts=COUNTS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(len(counts), 3, generator=generator), torch.rand(sum(counts), generator=generator)


def test_the_paper_has_no_views():
    assert not has_views(ObjectiveConfig())
    for field in ({"keep_channels": 0.9}, {"rereference": 0.1}, {"hide_amplitude": 0.1}):
        assert has_views(ObjectiveConfig(**field))


def test_a_window_keeps_a_share_of_its_channels_between_the_least_and_all():
    noise = torch.linspace(0, 0.9999, 1001)
    found = np.array(kept_counts([20] * 1001, noise, ObjectiveConfig(keep_channels=0.3)))
    assert (found.min(), found.max()) == (6, 20)
    assert found.mean() == pytest.approx(20 * 0.65 + 0.5, abs=0.1)  # a uniform share, rounded up
    assert kept_counts([1, 2, 3], torch.zeros(3), ObjectiveConfig(keep_channels=0.01)) == [1, 1, 1]


def test_kept_channels_are_rows_of_the_window_in_their_order():
    batch, (noise_B3, noise_R) = batch_of(), noise_of()
    objective = ObjectiveConfig(keep_channels=0.4)
    view = make_view(batch, COUNTS, objective, noise_B3, noise_R)
    kept = kept_counts(COUNTS, noise_B3[:, 0], objective)
    assert view.layout.counts(torch.device("cpu")).tolist() == kept
    assert sum(kept) < sum(COUNTS)
    first = 0
    for count, keep, signals, ids, noise in zip(
        COUNTS,
        kept,
        view.signal_RT.split(kept),
        view.channels_R2.split(kept),
        noise_R.split(COUNTS),
        strict=True,
    ):
        rows = first + noise.argsort()[:keep].sort().values
        assert torch.equal(signals, batch.signal_RT[rows])
        assert torch.equal(ids, batch.channels_R2[rows])
        first += count
    assert torch.equal(view.scale_R, torch.tensor([5.0, 20.0, 30.0, 40.0]).repeat_interleave(torch.tensor(kept)))


def test_the_average_reference_is_of_the_kept_channels():
    batch, (noise_B3, noise_R) = batch_of(), noise_of()
    noise_B3[:, 1] = torch.tensor([0.1, 0.1, 0.9, 0.1])
    view = make_view(batch, COUNTS, ObjectiveConfig(rereference=0.5), noise_B3, noise_R)
    before, after = batch.signal_RT.float().split(COUNTS), view.signal_RT.split(COUNTS)
    torch.testing.assert_close(after[0], before[0] - before[0].mean(0))
    for number in (1, 2, 3):  # three channels; not drawn; one channel
        assert torch.equal(after[number], before[number])
    both = ObjectiveConfig(rereference=1.0, keep_channels=0.6)
    view = make_view(batch, COUNTS, both, noise_B3, noise_R)
    kept = kept_counts(COUNTS, noise_B3[:, 0], both)
    assert kept[2] >= 4
    assert view.signal_RT.split(kept)[2].mean(0).abs().max() < 1e-5


def test_bipolar_windows_keep_their_reference():
    batch, (noise_B3, noise_R) = batch_of([6], bipolar=True), noise_of([6])
    assert (batch.channels_R2[:, 1] > 0).any()
    view = make_view(batch, [6], ObjectiveConfig(rereference=1.0), noise_B3, noise_R)
    assert torch.equal(view.signal_RT, batch.signal_RT.float())


def test_a_hidden_amplitude_is_the_usual_one():
    batch, (noise_B3, noise_R) = batch_of(), noise_of()
    noise_B3[:, 2] = torch.tensor([0.1, 0.9, 0.1, 0.9])
    view = make_view(batch, COUNTS, ObjectiveConfig(hide_amplitude=0.5), noise_B3, noise_R)
    config = small(amplitude=True)
    before, after = make_patches(batch, config), make_patches(view, config)
    assert torch.equal(after.values_RNL, before.values_RNL)
    for number, (old, new) in enumerate(
        zip(before.loudness_R.split(COUNTS), after.loudness_R.split(COUNTS), strict=True)
    ):
        assert old.abs().min() > 0.01
        assert torch.equal(new, old if number % 2 else torch.zeros(COUNTS[number]))
