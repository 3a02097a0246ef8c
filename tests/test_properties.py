"""What must hold for any window: pads and order of channels change nothing, layers look only where they may."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cerebro_eeg.batch import Batch, Layout
from cerebro_eeg.config import ObjectiveConfig, PatchConfig, preset
from cerebro_eeg.model.attention import KINDS as MAKERS
from cerebro_eeg.model.attention import AxisAttention, attend
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.encoder import Block, Encoder
from cerebro_eeg.model.masked import MaskedCerebro
from tiny_models import KINDS, make_windows, randomized, small, to_batch

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
kinds = st.sampled_from(KINDS)
dtypes = st.sampled_from(list(TOLERANCE))
counts_of_channels = st.lists(st.integers(1, 6), min_size=1, max_size=4)


def padded(windows, ids, width, dtype, order):
    """Windows padded to ``width`` channels, their channels and pads put in the order that ``order`` draws."""
    signal = torch.full((len(windows), width, windows[0].shape[1]), 7.0, dtype=dtype)
    channels = torch.zeros(len(windows), width, 2, dtype=torch.int64)
    slots = [order.permutation(width)[: len(w)] for w in windows]
    for b, (window, its_ids, slot) in enumerate(zip(windows, ids, slots, strict=True)):
        signal[b, slot] = torch.tensor(window, dtype=dtype)
        channels[b, slot] = torch.tensor(its_ids)
    return Batch.dense(signal, channels), slots


@given(kinds, dtypes, counts_of_channels, st.integers(0, 4), st.integers(0, 2**32 - 1))
def test_pads_and_order_of_channels_change_no_real_output(kind, dtype, counts, extra, seed):
    encoder = randomized(Encoder(small(attention=kind))).to(dtype)
    windows, ids = make_windows(counts, 40, seed)
    batch, slots = padded(windows, ids, max(counts) + extra, dtype, np.random.default_rng(seed))
    found = encoder(batch)
    grid = found.layout.grid(found.x_RND)
    packed = encoder(batch.packed())
    pooled = found.per_window()
    torch.testing.assert_close(packed.per_window(), pooled, rtol=0, atol=TOLERANCE[dtype])
    for b, slot in enumerate(slots):
        alone = encoder(Batch.dense(torch.tensor(windows[b], dtype=dtype)[None], torch.tensor(ids[b])))
        torch.testing.assert_close(grid[b, slot], alone.x_RND, rtol=0, atol=TOLERANCE[dtype])
        torch.testing.assert_close(pooled[b], alone.per_window()[0], rtol=0, atol=TOLERANCE[dtype])


@given(st.sampled_from(["simmim", "vitmae"]), kinds, counts_of_channels, st.integers(0, 2**32 - 1))
def test_losses_of_padded_and_packed_batches_are_equal(style, kind, counts, seed):
    model = randomized(MaskedCerebro(small(attention=kind), ObjectiveConfig(style=style)))
    windows, ids = make_windows(counts, 40, seed)
    batch, _ = padded(windows, ids, max(counts) + 2, torch.float64, np.random.default_rng(seed))
    noise = torch.tensor(np.random.default_rng(seed).uniform(size=(len(counts) * (max(counts) + 2), 5)))
    a, b = model(batch, noise), model(batch.packed(), noise[batch.layout.real_R])
    assert a.masked_count == b.masked_count
    assert a.visible_count == b.visible_count
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-12, atol=1e-12)


@given(counts_of_channels, st.booleans())
def test_rows_and_grid_are_inverse(counts, separated):
    layout = Layout.ragged(counts)
    x = torch.arange(sum(counts) * 3.0).reshape(-1, 3)
    grid = layout.grid(x)
    torch.testing.assert_close(layout.rows(grid), x)
    assert layout.counts(x.device).tolist() == counts
    present = layout.present(x.device)
    assert (grid[~present] == 0).all() if present is not None else len(set(counts)) == 1
    owner = layout.per_row(torch.arange(len(counts)))
    assert owner.tolist() == [b for b, n in enumerate(counts) for _ in range(n)]
    twice, order = layout.doubled(separated)
    assert twice.counts(x.device).tolist() == [2 * n for n in counts]
    if order is not None:
        assert sorted(order.tolist()) == list(range(2 * sum(counts)))


# Where a token (channel, time) may look in one layer of each kind.
MAY_LOOK = {
    ("alternating", 1): lambda c, n, c2, n2: n == n2,
    ("alternating", 2): lambda c, n, c2, n2: c == c2,
    ("standard", 1): lambda c, n, c2, n2: True,
    ("two_axis", 1): lambda c, n, c2, n2: c == c2 or n == n2,
    ("bottleneck", 1): lambda c, n, c2, n2: True,
}


@pytest.mark.parametrize(("kind", "layer"), list(MAY_LOOK))
def test_jacobian_of_a_block_is_zero_exactly_where_it_must_not_look(kind, layer):
    windows, channels, patches = 2, 3, 4
    config = small(attention=kind)
    block = randomized(Block(config, layer))
    layout = Layout.uniform(windows, channels)
    x = torch.randn(windows * channels, patches, config.width, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: block(x, layout), x, vectorize=True)
    reach = jacobian.abs().amax((2, 5)).reshape(windows, channels, patches, windows, channels, patches)
    for b, c, n, b2, c2, n2 in np.ndindex(reach.shape):
        allowed = b == b2 and (MAY_LOOK[kind, layer](c, n, c2, n2) or (c, n) == (c2, n2))
        assert (reach[b, c, n, b2, c2, n2] > 0) == allowed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("channels", "patches"), [(1, 1), (1, 20), (23, 1), (128, 2)])
def test_gradients_are_finite_at_the_edges(kind, channels, patches):
    """One channel, one patch, 128 channels, and in each a window that is all pads."""
    config = small(attention=kind)
    for style in ("simmim", "vitmae"):
        model = randomized(MaskedCerebro(config, ObjectiveConfig(style=style))).float()
        ids = torch.zeros(3, channels, 2, dtype=torch.int64)
        ids[:2, :, 0] = torch.arange(1, channels + 1)
        ids[1, channels // 2 :] = 0
        found = model(Batch.dense(torch.randn(3, channels, 8 * patches) * 20, ids))
        found.loss.backward()
        assert torch.isfinite(found.loss)
        for name, p in model.named_parameters():
            assert p.grad is None or torch.isfinite(p.grad).all(), name


@pytest.mark.parametrize("axis", ["channels", "time"])
def test_more_than_65536_folded_rows(axis):
    """Stock kernels on CUDA fail there (docs/paper.md); the same call must work for any number of rows."""
    windows, channels, patches = (33_000, 3, 2) if axis == "channels" else (33_000, 2, 3)
    attention = randomized(AxisAttention(small(width=4, heads=2), axis)).float()
    x = torch.randn(windows * channels, patches, 4, requires_grad=True)
    out = attention(x, Layout.uniform(windows, channels))
    out.sum().backward()
    few = attention(x[: 2 * channels], Layout.uniform(2, channels))
    torch.testing.assert_close(out[: 2 * channels], few)
    torch.testing.assert_close(out[-channels:], attention(x[-channels:], Layout.uniform(1, channels)))
    assert torch.isfinite(x.grad).all()


def test_attention_over_nothing_gives_zeros_and_finite_gradients():
    for axis in ("channels", "time", "all"):
        qkv = torch.randn(4, 3, 36, dtype=torch.float64, requires_grad=True)
        keys = torch.zeros(4, 3, dtype=torch.bool)
        out = attend(qkv, Layout.uniform(2, 2), axis, 3, keys)
        assert (out == 0).all()
        out.sum().backward()
        assert (qkv.grad == 0).all()


@pytest.mark.parametrize("axis", ["channels", "time", "all"])
def test_empty_batch(axis):
    attention = AxisAttention(small(), axis)
    assert attention(torch.zeros(0, 5, 12), Layout.uniform(0, 3)).shape == (0, 5, 12)


def test_attention_is_torch_multi_head_attention_with_key_padding():
    config = small(attention="standard")
    attention = randomized(MAKERS["standard"](config, 1))
    theirs = torch.nn.MultiheadAttention(config.width, config.heads, batch_first=True, dtype=torch.float64).eval()
    theirs.in_proj_weight.data, theirs.in_proj_bias.data = attention.qkv.weight.data, attention.qkv.bias.data
    theirs.out_proj.load_state_dict(attention.out.state_dict())
    real = torch.tensor([[True, True, False], [True, False, True]])
    x = torch.randn(6, 5, config.width, dtype=torch.float64)
    found = attention(x, Layout.padded(real)).reshape(2, 15, -1)
    tokens, hide = x.reshape(2, 15, -1), ~real.repeat_interleave(5, 1)
    expected = theirs(tokens, tokens, tokens, key_padding_mask=hide, need_weights=False)[0]
    torch.testing.assert_close(found[~hide], expected[~hide], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_standard_block_is_torch_transformer_encoder_layer(norm):
    config = small(attention="standard", norm=norm)
    block = randomized(Block(config, 1))
    theirs = torch.nn.TransformerEncoderLayer(
        config.width,
        config.heads,
        config.hidden,
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=norm == "pre",
        dtype=torch.float64,
    ).eval()
    theirs.self_attn.in_proj_weight.data = block.attention.qkv.weight.data
    theirs.self_attn.in_proj_bias.data = block.attention.qkv.bias.data
    theirs.self_attn.out_proj.load_state_dict(block.attention.out.state_dict())
    theirs.linear1.load_state_dict(block.mlp.up.state_dict())
    theirs.linear2.load_state_dict(block.mlp.down.state_dict())
    theirs.norm1.load_state_dict(block.norm1.state_dict())
    theirs.norm2.load_state_dict(block.norm2.state_dict())
    x = torch.randn(6, 5, config.width, dtype=torch.float64, requires_grad=True)
    found = block(x, Layout.uniform(2, 3))
    torch.testing.assert_close(found, theirs(x.reshape(2, 15, -1)).reshape(found.shape), rtol=1e-12, atol=1e-12)


def test_drop_path_skips_whole_windows_keeps_the_mean_and_rests_in_eval():
    encoder = Encoder(small(depth=4))
    encoder.set_drop_path(0.3)
    assert [round(b.drop_path, 3) for b in encoder.blocks] == [0.0, 0.1, 0.2, 0.3]
    encoder.set_drop_path(0.3, "constant")
    block = randomized(encoder.blocks[0])
    x = torch.randn(2000 * 2, 5, 12, dtype=torch.float64)
    x[:] = x[:2].repeat(2000, 1, 1)  # the same window again and again
    layout = Layout.uniform(2000, 2)
    block.mlp.down.weight.data.zero_()
    block.mlp.down.bias.data.zero_()
    dropped = (block.train()(x, layout) - x).reshape(2000, -1)
    kept = (block.eval()(x, layout) - x).reshape(2000, -1)
    skipped = (dropped == 0).all(1)
    torch.testing.assert_close(dropped[~skipped], kept[~skipped] / 0.7)
    assert abs(float(skipped.double().mean()) - 0.3) < 5 * (0.21 / 2000) ** 0.5
    noise = torch.tensor([[0.1, 0.9], [0.9, 0.9]])
    given_noise = block.train()(x[:4], Layout.uniform(2, 2), noise_2B=noise) - x[:4]
    assert (given_noise[:2] == 0).all()
    assert (given_noise[2:] != 0).any()


def test_every_parameter_learns_but_the_pad_and_electrodes_that_are_not_there():
    """What DDP waits for must get a gradient: all that requires one, in both styles and every kind."""
    for style in ("simmim", "vitmae"):
        for kind in KINDS:
            for patches in (PatchConfig(length=8, stride=8), PatchConfig(kind="time_bins", phase="separated")):
                config = small(attention=kind, patches=patches, window=320, amplitude=True)
                model = randomized(MaskedCerebro(config, ObjectiveConfig(style=style)))
                model(to_batch(*make_windows([3, 2], 320), scale=[9.0, 4.0])).loss.backward()
                missing = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
                assert missing == []
                assert not model.encoder.pad_token.requires_grad
                assert (model.encoder.electrodes.grad[0] == 0).all()


def test_compile_takes_the_whole_model_and_mixtures_do_not_recompile():
    model = randomized(MaskedCerebro(small(depth=4)))
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(model, backend=backend, dynamic=True, fullgraph=True)
    mixtures = [[3, 2, 5], [4, 1, 5], [2, 6, 3, 3], [1, 2, 3, 4, 5], [7, 3]]
    for i, counts in enumerate(mixtures):
        batch = to_batch(*make_windows(counts, 40, seed=i))
        noise = torch.rand(sum(counts), 5, dtype=torch.float64)
        torch.testing.assert_close(compiled(batch, noise).loss, model(batch, noise).loss)
    assert len(graphs) == 1


def test_the_padded_form_exports():
    encoder = randomized(Encoder(small())).eval()

    class Padded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = encoder

        def forward(self, signal_BCT, channels_BC2):
            return self.encoder(Batch.dense(signal_BCT, channels_BC2)).per_window()

    batch, _ = padded(*make_windows([3, 2], 40), 4, torch.float64, np.random.default_rng(0))
    inputs = (batch.signal_RT.reshape(2, 4, 40), batch.channels_R2.reshape(2, 4, 2))
    sizes = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    program = torch.export.export(Padded(), inputs, dynamic_shapes=(sizes, sizes))
    other, _ = padded(*make_windows([5, 1, 4], 40), 6, torch.float64, np.random.default_rng(1))
    inputs = (other.signal_RT.reshape(3, 6, 40), other.channels_R2.reshape(3, 6, 2))
    torch.testing.assert_close(program.module()(*inputs), encoder(other.packed()).per_window(), rtol=1e-12, atol=1e-12)


def test_start_of_the_weights():
    """Tables and tokens truncated normal of 0.02, linear layers Xavier-uniform, zero biases, unit norms."""
    torch.manual_seed(0)
    encoder = Encoder(preset("small").model)
    assert abs(encoder.electrodes[1:].std().item() - 0.02 * 0.88) < 1e-3  # cut off at two standard deviations
    assert encoder.electrodes.abs().max() <= 0.04
    assert (encoder.electrodes[0] == 0).all()
    qkv = encoder.blocks[0].attention.qkv
    limit = (6 / (192 + 576)) ** 0.5
    assert 0.99 * limit < qkv.weight.abs().max() <= limit
    assert not any(module.bias.any() for module in encoder.modules() if isinstance(module, torch.nn.Linear))


def test_start_of_heads_is_that_of_every_linear_layer():
    torch.manual_seed(0)
    heads = [Cerebro(5, config="tiny").final_layer]
    heads += [MaskedCerebro(preset("tiny").model, ObjectiveConfig(style=s)).reconstruct for s in ("simmim", "vitmae")]
    for head in heads:
        limit = (6 / (head.in_features + head.out_features)) ** 0.5
        assert 0.9 * limit < head.weight.abs().max() <= limit
        assert not head.bias.any()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_cuda_agrees_with_cpu(kind):
    model = randomized(MaskedCerebro(small(attention=kind))).float()
    windows, ids = make_windows([5, 3, 4], 40)
    batch = to_batch([w.astype(np.float32) for w in windows], ids)
    noise = torch.rand(12, 5)
    expected = model(batch, noise).loss
    cuda = Batch(batch.signal_RT.cuda(), batch.channels_R2.cuda(), Layout.ragged([5, 3, 4], torch.device("cuda")))
    torch.testing.assert_close(model.cuda()(cuda, noise.cuda()).loss.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("axis", ["channels", "time"])
def test_cuda_trains_at_the_batch_of_the_paper(axis):
    """4,096 windows fold to 81,920 rows and more, beyond what stock kernels take at once."""
    torch.manual_seed(0)
    attention = AxisAttention(preset("small").model, axis).cuda().bfloat16()
    windows, channels, patches = (4096, 23, 20) if axis == "channels" else (4096, 23, 4)
    x = torch.randn(windows * channels, patches, 192, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    out = attention(x, Layout.uniform(windows, channels))
    out.float().square().mean().backward()
    last = attention(x[-channels:], Layout.uniform(1, channels))
    torch.testing.assert_close(out[-channels:], last, rtol=2e-2, atol=2e-2)
    assert torch.isfinite(x.grad).all()
