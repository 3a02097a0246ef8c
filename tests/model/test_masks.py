"""Masks in blocks: as many tokens as ever, near each other on the head and in time, never all channels at once."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_eeg.batch import Batch
from cerebro_eeg.channels.electrodes import IDS, POSITIONS, TEN_TWENTY, distance_mm
from cerebro_eeg.channels.match import Channel
from cerebro_eeg.config import ObjectiveConfig, PatchConfig
from cerebro_eeg.model.encoder import Encoder
from cerebro_eeg.model.masked import MaskedCerebro
from cerebro_eeg.model.masks import mask_tokens, neighbours, token_counts
from tiny_models import small

BLOCKS = ObjectiveConfig(masking="blocks", block_seconds=0.1)  # 3 patches of 8 samples


def ids_of(*names):
    return torch.tensor([Channel(*name.split("-")).ids for name in names])


def batch_of(*montages, samples=80):
    return Batch.ragged([torch.randn(len(names), samples) for names in montages], [ids_of(*m) for m in montages])


def masked(batch, objective=BLOCKS, config=None, seed=0):
    config = config or small(window=80)
    patches = Encoder(config).cut(batch)
    noise = torch.rand(patches.values_RNL.shape[:2], generator=torch.Generator().manual_seed(seed))
    return mask_tokens(noise, patches, config, objective), patches, noise


MIXED = (TEN_TWENTY, ("Fp1-F7", "F7-T7", "Pz"), ("Cz",), ("O1", "O2"), tuple(POSITIONS)[:64])


def test_as_many_tokens_of_each_window_as_without_blocks():
    batch = batch_of(*MIXED)
    for ratio in (0.1, 0.5, 0.55):
        found, patches, _ = masked(batch, ObjectiveConfig(masking="blocks", mask_ratio=ratio))
        counted = patches.layout.grid(found).flatten(1).sum(1).tolist()
        assert counted == [round(ratio * (10 * len(names))) for names in MIXED]
        assert sum(counted) == token_counts([len(names) for names in MIXED], 10, ratio)[0]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.floats(5.0, 400.0), st.floats(0.01, 2.0))
def test_never_all_channels_at_once(seed, millimetres, seconds):
    """Also where a block is larger than the head: each instant keeps a channel, in windows of two and more."""
    objective = ObjectiveConfig(masking="blocks", block_mm=millimetres, block_seconds=seconds)
    found, patches, _ = masked(batch_of(*MIXED), objective, seed=seed)
    seen_BT = (patches.layout.grid(~found) & patches.layout.present_BC[..., None]).any(1)
    assert [bool(seen_T.all()) for seen_T in seen_BT] == [True, True, False, True, True]


def test_neighbours_are_counted_along_the_scalp():
    names = ("Fz", "Cz", "C3", "C3-Cz", "T7-T8", "C1")
    near = neighbours(ids_of(*names)[None], 80.0)[0]
    assert near[0].tolist() == [True, True, False, False, False, False]  # Fz to Cz: 74.6 mm
    assert not neighbours(ids_of("Fz", "Cz")[None], 74.0)[0, 0, 1]
    assert near[3].tolist() == [False, True, True, True, False, True]  # halfway is C1
    assert near[4].tolist() == [False, False, False, False, True, False]  # halfway is inside of the head
    assert torch.equal(near, near.T)
    sites = TEN_TWENTY
    expected = [[distance_mm(POSITIONS[a], POSITIONS[b]) <= 65.0 for b in sites] for a in sites]
    assert neighbours(ids_of(*sites)[None], 65.0)[0].tolist() == expected


def test_blocks_are_those_of_plain_loops():
    """Each token takes the smallest noise of a centre that is near in space and time; the rest is ranking."""
    names = (*TEN_TWENTY[:7], "O1-O2")
    found, _, noise = masked(batch_of(names))

    def point(name):
        first, _, second = name.partition("-")
        sums = [a + (POSITIONS[second][k] if second else 0) for k, a in enumerate(POSITIONS[first])]
        return [value / math.hypot(*sums) for value in sums]

    def apart(a, b):
        return 95 * math.acos(max(-1, min(1, sum(x * y for x, y in zip(point(a), point(b), strict=True)))))

    score = {}
    for row, name in enumerate(names):
        for time in range(10):
            covering = [
                noise[other, t].item()
                for other, there in enumerate(names)
                for t in range(max(0, time - 1), min(10, time + 2))
                if other == row or apart(name, there) <= 80
            ]
            score[row, time] = min(covering)
    for time in range(10):
        last = max(range(len(names)), key=lambda row: (score[row, time], -row))
        score[last, time] += 1
    ranked = sorted(score, key=lambda place: (score[place], place))[: round(0.5 * 80)]
    expected = torch.zeros(len(names), 10, dtype=torch.bool)
    for place in ranked:
        expected[place] = True
    assert torch.equal(found, expected)


def test_masked_tokens_have_masked_neighbours():
    """Of a masked token's neighbour on the head, far more are masked than half; of an electrode far away, not."""
    names = ("F3", "C3", "P4", "O2")
    found = torch.stack([masked(batch_of(TEN_TWENTY), seed=seed)[0] for seed in range(200)]).double()
    f3, c3, p4, o2 = (found[:, TEN_TWENTY.index(name)] for name in names)
    assert (f3 * c3).sum() / f3.sum() > 0.6
    assert (f3 * p4).sum() / f3.sum() < 0.52
    assert (o2[:, 1:] * o2[:, :-1]).sum() / o2[:, 1:].sum() > 0.65


def test_the_mask_of_a_window_does_not_depend_on_its_batch():
    whole, _, noise = masked(batch_of(*MIXED))
    rows = torch.cat([torch.full((len(names),), number) for number, names in enumerate(MIXED)])
    for number, names in enumerate(MIXED):
        alone = Encoder(small(window=80)).cut(batch_of(names))
        mine = rows == number
        assert torch.equal(mask_tokens(noise[mine], alone, small(window=80), BLOCKS), whole[mine])
    padded_ids = torch.stack([ids_of("Cz", "O1", "O2"), torch.tensor([[IDS["Cz"], 0], [IDS["O1"], 0], [0, 0]])])
    padded = Encoder(small(window=80)).cut(Batch.dense(torch.randn(2, 3, 80), padded_ids))
    found = mask_tokens(torch.zeros(6, 10), padded, small(window=80), BLOCKS).reshape(2, 3, 10)
    assert found.flatten(1).sum(1).tolist() == [15, 10]
    assert not found[1, 2].any()


@pytest.mark.parametrize("kind", ["time_bins", "squares"])
def test_blocks_of_a_spectrogram_cover_all_its_bands_and_phase(kind):
    config = small(window=320, patches=PatchConfig(kind=kind, phase="separated"))
    found, _, _ = masked(batch_of(TEN_TWENTY, samples=320), ObjectiveConfig(masking="blocks"), config)
    assert int(found.sum()) == round(0.5 * found.numel())
    halves = found.reshape(2, 19, -1)  # magnitudes of all channels, then phases
    assert (halves[0] == halves[1]).double().mean() > 0.9
    if kind == "squares":
        bands = found.reshape(38, -1, 8)
        assert (bands == bands[..., :1]).double().mean() > 0.9


def test_the_model_masks_as_its_objective_says():
    torch.manual_seed(0)
    batch, noise = batch_of(TEN_TWENTY), torch.rand(19, 10)
    model = MaskedCerebro(small(window=80), BLOCKS)
    expected = mask_tokens(noise, model.encoder.cut(batch), model.config, BLOCKS)
    assert torch.equal(model(batch, noise).masked_RN, expected)
    assert not torch.equal(MaskedCerebro(small(window=80))(batch, noise).masked_RN, expected)
