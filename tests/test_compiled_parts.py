"""Parts that are compiled on their own: copies have weights of their own, and no variant runs uncompiled."""

import copy
import dataclasses
import io

import pytest
import torch
from torch import nn

from cerebro_eeg.config import preset
from cerebro_eeg.model.encoder import Encoder
from tiny_models import make_windows, randomized, small, to_batch

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's compiler looks at it


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """All of the tracing, none of the code generation."""
    compile_function = torch.compile
    monkeypatch.setattr(torch, "compile", lambda part, **given: compile_function(part, backend="eager", **given))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def batch(counts):
    return to_batch(*make_windows(counts, 40))


def test_a_copy_has_weights_of_its_own():
    encoder = randomized(Encoder(small()))
    encoder.compile_parts()
    file = io.BytesIO()
    torch.save(encoder, file)
    file.seek(0)
    for other in (copy.deepcopy(encoder), torch.load(file, weights_only=False)):
        expected = encoder(batch([3, 3])).x_RND
        assert torch.equal(other(batch([3, 3])).x_RND, expected)
        nn.init.zeros_(other.norm.weight)
        nn.init.zeros_(other.norm.bias)
        assert not other(batch([3, 3])).x_RND.any()
        other.compile_parts()
        assert not other(batch([3, 3])).x_RND.any()
        assert torch.equal(encoder(batch([3, 3])).x_RND, expected)


def test_a_copy_keeps_what_somebody_put_in_place_of_a_part():
    encoder = randomized(Encoder(small()))
    expected = encoder(batch([3, 3])).x_RND
    finish = encoder.finish
    encoder.finish = lambda *given: 2 * finish(*given)
    for module in (encoder, copy.deepcopy(encoder)):
        assert torch.equal(module(batch([3, 3])).x_RND, 2 * expected)
    encoder.compile_parts()
    encoder.compile_parts()  # once more changes nothing
    assert torch.equal(encoder(batch([3, 3])).x_RND, 2 * expected)


def test_every_variant_is_compiled():
    """Uniform and ragged windows, trained on and validated on, as in a run on mixed montages."""
    encoder = randomized(Encoder(small(depth=4)))
    encoder.compile_parts()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for counts in ([3, 3], [2, 3, 5]):
            encoder(batch(counts)).x_RND.mean().backward()
            with torch.no_grad():
                encoder(batch(counts))


def test_a_spectrogram_is_not_compiled():
    """torch would say that it cannot generate code for complex numbers, in every run."""
    for kind, compiled in (("waveform", True), ("time_bins", False)):
        config = preset("tiny").model
        encoder = Encoder(dataclasses.replace(config, patches=dataclasses.replace(config.patches, kind=kind)))
        encoder.compile_parts()
        assert ("cut" in vars(encoder)) is compiled
        assert "tokens" in vars(encoder)
