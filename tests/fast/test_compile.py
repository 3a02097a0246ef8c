"""Compilation in parts: copies of a model keep their own weights, and no variant runs uncompiled."""

import copy
import dataclasses
import io

import pytest
import torch
from torch import nn

from cerebro_eeg.batch import Batch
from cerebro_eeg.config import preset
from cerebro_eeg.fast import embedding
from cerebro_eeg.model.encoder import Encoder
from tiny_models import make_windows, randomized, small, to_batch

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's compiler looks at it


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Make ``torch.compile`` trace but generate no code."""
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


def test_a_copy_keeps_a_replaced_method():
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


def test_the_length_of_windows_is_compiled_in_and_their_number_is_not():
    encoder = randomized(Encoder(small()))
    given = [to_batch(*make_windows(counts, samples)) for counts, samples in (([2, 3, 5], 40), ([3, 4, 6, 2], 40))]
    longer = to_batch(*make_windows([2, 3, 5], 48))
    expected = [encoder.tokens(encoder.cut(each)) for each in (*given, longer)]
    encoder.compile_parts()
    found = [encoder.tokens(encoder.cut(given[0]))]
    with torch._dynamo.config.patch(error_on_recompile=True):
        found.append(encoder.tokens(encoder.cut(given[1])))
        with pytest.raises(torch._dynamo.exc.RecompileError):
            encoder.cut(longer)
    found.append(encoder.tokens(encoder.cut(longer)))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("pads", [True, False])
def test_hidden_patches_that_are_zeros_in_the_product(bias, pads, monkeypatch):
    """Zeros in the product, as compiled in mixed precision, give the same as [MASK] put in after the product."""
    torch.manual_seed(0)
    encoder = randomized(Encoder(small(bias=bias))).double()
    signal = torch.randn(2, 3, 40, dtype=torch.float64)
    channels = torch.tensor([[(1, 0), (2, 3), (0, 0) if pads else (4, 0)]] * 2)
    patches = encoder.cut(Batch.dense(signal, channels))
    masked = torch.rand(patches.values_RNL.shape[:2]) < 0.5
    parameters = [p for p in encoder.parameters(recurse=False) if p.requires_grad] + [*encoder.embed.parameters()]

    def run():
        x = encoder.tokens(patches, masked)
        return x, *torch.autograd.grad(x.square().sum(), parameters)

    expected = run()
    hidden = patches.values_RNL.masked_fill(masked[..., None], torch.nan)  # must not be read
    patches = dataclasses.replace(patches, values_RNL=hidden)
    monkeypatch.setattr(embedding, "_is_mixed", lambda layer, values: True)
    encoder.compile_parts()
    for a, b in zip(run(), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_a_model_compiled_as_a_whole_knows_no_length():
    encoder = randomized(Encoder(small()))
    given = [to_batch(*make_windows([3, 3], samples)) for samples in (40, 32, 24)]
    expected = [encoder(each).x_RND for each in given]
    whole = torch.compile(lambda each: encoder(each).x_RND, dynamic=True)
    found = [whole(given[0])]
    with torch._dynamo.config.patch(error_on_recompile=True):
        found += [whole(each) for each in given[1:]]
    torch.testing.assert_close(found, expected)


def test_a_spectrogram_is_not_compiled():
    """torch would say that it cannot generate code for complex numbers, in every run."""
    for kind, compiled in (("waveform", True), ("time_bins", False)):
        config = preset("tiny").model
        encoder = Encoder(dataclasses.replace(config, patches=dataclasses.replace(config.patches, kind=kind)))
        encoder.compile_parts()
        assert ("cut" in vars(encoder)) is compiled
        assert "tokens" in vars(encoder)


def test_a_replaced_last_norm_is_called():
    class Wrapped(nn.Module):
        def __init__(self, norm):
            super().__init__()
            self.norm = norm

        def forward(self, x):
            return 2 * self.norm(x)

    encoder = randomized(Encoder(small()))
    expected = encoder(batch([3, 2])).x_RND
    encoder.norm = Wrapped(encoder.norm)
    torch.testing.assert_close(encoder(batch([3, 2])).x_RND, 2 * expected)
    with torch.no_grad():
        torch.testing.assert_close(encoder(batch([3, 2])).x_RND, 2 * expected)
