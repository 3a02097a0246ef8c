"""The attention between channels equals the maps of the loop-written reference, for every kind and norm."""

import numpy as np
import pytest
import torch

import reference as ref
from cerebro_eeg import errors
from cerebro_eeg.model.attention_weights import channel_attention, channel_layers
from cerebro_eeg.model.encoder import Encoder
from tiny_models import KINDS, make_windows, randomized, small, to_batch, weights_of


def maps_of_the_reference(monkeypatch, config, encoder, window, ids):
    """Every map that the loops compute, in their order."""
    found, plain = [], ref.attention_map

    def recording(*arguments):
        found.append(plain(*arguments))
        return found[-1]

    monkeypatch.setattr(ref, "attention_map", recording)
    patches = ref.waveform_patches(ref.normalize(window), 8, 8)
    settings = ref.Settings(config.attention, config.heads, config.norm, config.first_axis)
    ref.encoder(patches, ids, weights_of(encoder), settings)
    return found


def expected(kind, layer, maps, C, N, H, first_axis="channels"):
    """The mean over patches of a layer's attention between channels, (H, C, C), from the maps in their order."""
    if kind == "alternating":
        first = 0
        for number in range(1, layer):
            channels = (number % 2 == 1) == (first_axis == "channels")
            first += (N if channels else C) * H
        return np.array(maps[first : first + N * H]).reshape(N, H, C, C).mean(0)
    if kind == "two_axis":
        first = (layer - 1) * (N + C) * H
        return np.array(maps[first : first + N * H]).reshape(N, H, C, C).mean(0)
    if kind == "standard":
        of_layer = np.array(maps[(layer - 1) * H : layer * H]).reshape(H, C, N, C, N)
        return of_layer.sum(4).mean(2)
    return np.array(maps[(layer - 1) * 2 * H : layer * 2 * H : 2])  # one over channels and one over time a head


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_plain_loops(monkeypatch, kind, norm):
    config = small(attention=kind, norm=norm, depth=4)
    encoder = randomized(Encoder(config)).eval()
    windows, ids = make_windows([4, 4], 40)
    layers = channel_layers(encoder)
    assert layers == ((1, 3) if kind == "alternating" else (1, 2, 3, 4))
    with torch.no_grad():
        found = channel_attention(encoder, to_batch(windows, ids), layers)
    for number, (window, id_) in enumerate(zip(windows, ids, strict=True)):
        maps = maps_of_the_reference(monkeypatch, config, encoder, window, id_)
        monkeypatch.undo()
        for layer, weights in zip(layers, found, strict=True):
            wanted = expected(kind, layer, maps, 4, 5, 3)
            np.testing.assert_allclose(weights[number].numpy(), wanted, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(weights[number].sum(-1).numpy(), 1, atol=1e-12)
            assert weights[number].std() > 0.01  # an even share would prove nothing


def test_layers_that_attend_across_channels():
    assert channel_layers(Encoder(small(depth=4, first_axis="time"))) == (2, 4)
    encoder = randomized(Encoder(small(depth=4)))
    batch = to_batch(*make_windows([3], 40))
    with pytest.raises(errors.ConfigError, match=r"layer 2 does not attend across channels; choose from 1, 3"):
        channel_attention(encoder, batch, [1, 2])
    with pytest.raises(errors.InputError, match="different channels"):
        channel_attention(encoder, to_batch(*make_windows([3, 2], 40)), [1])


def test_one_layer_alone_and_in_single_precision():
    encoder = randomized(Encoder(small(depth=4))).eval()
    batch = to_batch(*make_windows([4], 40))
    with torch.no_grad():
        both = channel_attention(encoder, batch, [1, 3])
        (last,) = channel_attention(encoder, batch, [3])
        assert torch.equal(last, both[1])
        windows, ids = make_windows([4], 40)
        (single,) = channel_attention(encoder.float(), to_batch([w.astype(np.float32) for w in windows], ids), [3])
    np.testing.assert_allclose(single, last, atol=1e-5)
