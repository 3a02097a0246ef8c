"""Properties of the model for any window: pads and the order of channels have no effect; layers see only their axis."""

import copy
import dataclasses
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cerebro_eeg.batch import Batch, Layout
from cerebro_eeg.config import ObjectiveConfig, PatchConfig, preset
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.fast import Residual, row_difference
from cerebro_eeg.model.attention import KINDS as MAKERS
from cerebro_eeg.model.attention import AxisAttention, attend
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.encoder import Block, Encoder
from cerebro_eeg.model.masked import MaskedCerebro
from cerebro_eeg.model.masks import choose_masked, token_counts
from cerebro_eeg.model.patches import make_patches, normalize
from cerebro_eeg.train.loop import deterministic
from tiny_models import KINDS, make_windows, randomized, small, to_batch

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
kinds = st.sampled_from(KINDS)
dtypes = st.sampled_from(list(TOLERANCE))
counts_of_channels = st.lists(st.integers(1, 6), min_size=1, max_size=4)


def padded(windows, ids, width, dtype, order):
    """Return windows padded to ``width`` channels, with channels and pads in the random order of ``order``."""
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
    present = layout.present_BC
    assert (grid[~present] == 0).all() if present is not None else len(set(counts)) == 1
    owner = layout.per_row(torch.arange(len(counts)))
    assert owner.tolist() == [b for b, n in enumerate(counts) for _ in range(n)]
    twice, source = layout.doubled(separated, x.device)
    assert twice.counts(x.device).tolist() == [2 * n for n in counts]
    assert sorted(source.tolist()) == list(range(2 * sum(counts)))
    assert twice.rows(twice.grid(source)).tolist() == source.tolist()


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
    jacobian = torch.autograd.functional.jacobian(lambda x: block(Residual(x), layout).total(), x, vectorize=True)
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
    """torch's CUDA kernels fail there (docs/paper.md), but our call must work for any number of rows."""
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
    found = block(Residual(x), Layout.uniform(2, 3)).total()
    torch.testing.assert_close(found, theirs(x.reshape(2, 15, -1)).reshape(found.shape), rtol=1e-12, atol=1e-12)


def test_drop_path_skips_whole_windows_keeps_the_mean_and_rests_in_eval():
    encoder = randomized(Encoder(small(depth=4)))
    encoder.set_drop_path(0.3)
    assert [round(rate, 3) for rate in encoder.drop_path] == [0.0, 0.1, 0.2, 0.3]
    encoder = randomized(Encoder(small(depth=2)))
    encoder.set_drop_path(0.3, "constant")
    for block in encoder.blocks:
        for part in (block.mlp.down.weight, block.mlp.down.bias):
            part.data.zero_()
    x = torch.randn(2, 5, 12, dtype=torch.float64).repeat(2000, 1, 1)  # the same window again and again
    layout, first = Layout.uniform(2000, 2), {"layer": 1}
    dropped = (encoder.train().run(x, layout, **first) - x).reshape(2000, -1)
    kept = (encoder.eval().run(x, layout, **first) - x).reshape(2000, -1)
    skipped = (dropped == 0).all(1)
    torch.testing.assert_close(dropped[~skipped], kept[~skipped] / 0.7, rtol=1e-6, atol=1e-6)
    assert abs(float(skipped.double().mean()) - 0.3) < 5 * (0.21 / 2000) ** 0.5
    for rate, schedule in ((1.0, "linear"), (-0.1, "linear"), (0.1, "lin")):
        with pytest.raises(ConfigError):
            encoder.set_drop_path(rate, schedule)


@pytest.mark.parametrize("style", ["simmim", "vitmae"])
def test_drop_path_noise_belongs_to_block_branch_and_window_in_any_batch(style):
    """With given noise, a window has the same result alone and in a ragged batch, for every block and branch."""
    model = randomized(MaskedCerebro(small(depth=4), ObjectiveConfig(style=style))).train()
    model.encoder.set_drop_path(0.5, "constant")
    counts = [3, 1, 2]
    windows, ids = make_windows(counts, 40)
    noise, drop = torch.rand(6, 5, dtype=torch.float64), torch.rand(4, 2, 3)
    together = model(to_batch(windows, ids), noise, drop).predicted_RNL.split(counts)
    for b, part in enumerate(noise.split(counts)):
        alone = model(to_batch([windows[b]], [ids[b]]), part, drop[:, :, b : b + 1]).predicted_RNL
        torch.testing.assert_close(alone, together[b], rtol=1e-10, atol=1e-10)
    classifier = randomized(Cerebro(2, config=small(depth=4))).train()
    classifier.encoder.set_drop_path(0.5, "constant")
    all_kept = torch.ones(4, 2, 3)
    batch = to_batch(windows, ids)
    base = classifier(batch, noise_K2B=all_kept)
    seen = [base]
    for k, part in np.ndindex(4, 2):  # dropping one branch of one block in one window moves that window and no other
        drop = all_kept.clone()
        drop[k, part, 1] = 0
        moved = classifier(batch, noise_K2B=drop)
        torch.testing.assert_close(moved[[0, 2]], base[[0, 2]])
        assert all((moved[1] - other[1]).abs().max() > 1e-6 for other in seen)
        seen.append(moved)


def test_every_parameter_learns_but_the_pad_and_electrodes_that_are_not_there():
    """DDP waits for every parameter that requires a gradient, so each must get one, in both styles and every kind."""
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
    mixtures = [[3, 2, 6], [4, 1, 6], [2, 8, 3, 3], [1, 2, 3, 4, 7], [9, 3]]
    for i, counts in enumerate(mixtures):
        batch = to_batch(*make_windows(counts, 40, seed=i))
        noise = torch.rand(sum(counts), 5, dtype=torch.float64)
        torch.testing.assert_close(compiled(batch, noise).loss, model(batch, noise).loss)
    assert len(graphs) == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo looks at it itself
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # and torch 2.11 uses that
def test_blocks_compiled_one_by_one_share_their_graphs_with_drop_path_in_training_and_eval():
    """Twelve blocks with twelve rates must not exceed dynamo's limit of recompilations, or they fall back to eager."""
    torch._dynamo.reset()
    encoder = randomized(Encoder(small(depth=12)))
    encoder.set_drop_path(0.2)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    for block in encoder.blocks:
        block.compile(backend=backend, dynamic=True, fullgraph=True)
    for i, counts in enumerate([[3, 2, 6], [4, 1, 6], [2, 8, 3, 3]]):
        batch = to_batch(*make_windows(counts, 40, seed=i))
        assert torch.isfinite(encoder.train()(batch).x_RND).all()
        assert torch.isfinite(encoder.eval()(batch).x_RND).all()
    assert len(graphs) <= 6


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


@pytest.mark.parametrize("fill", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_pad_holds_reaches_nothing(kind, fill):
    """Not the outputs, the loss or a gradient, neither by attention nor by a product with zero."""
    config = small(attention=kind, amplitude=True, normalization="recording")
    windows, ids = make_windows([3, 1], 40)
    signal = torch.full((2, 4, 40), fill, dtype=torch.float64)
    channels, scale = torch.zeros(2, 4, 2, dtype=torch.int64), torch.full((2, 4), fill, dtype=torch.float64)
    for b, count in enumerate((3, 1)):
        signal[b, :count], channels[b, :count] = torch.tensor(windows[b]), torch.tensor(ids[b])
        scale[b, :count] = 10.0 + b
    for style in ("simmim", "vitmae"):
        model = randomized(MaskedCerebro(config, ObjectiveConfig(style=style)))
        noise = torch.rand(8, 5, dtype=torch.float64)
        padded_batch = Batch.dense(signal, channels, scale)
        found = model(padded_batch, noise)
        found.loss.backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        packed = model(padded_batch.packed(), noise[padded_batch.layout.real_R])
        packed.loss.backward()
        torch.testing.assert_close(found.loss, packed.loss, rtol=1e-10, atol=1e-10)
        for name, p in model.named_parameters():
            if p.grad is not None:
                torch.testing.assert_close(gradients[name], p.grad, rtol=1e-8, atol=1e-10)


def test_padded_separated_phase_with_amplitude_and_a_scale_for_each_window_equals_packed():
    patches = PatchConfig(kind="time_bins", phase="separated")
    encoder = randomized(Encoder(small(patches=patches, window=320, amplitude=True)))
    windows, ids = make_windows([3, 2], 320)
    signal, channels = torch.zeros(2, 4, 320, dtype=torch.float64), torch.zeros(2, 4, 2, dtype=torch.int64)
    slots = [[0, 2, 3], [1, 2]]
    for b, slot in enumerate(slots):
        signal[b, slot], channels[b, slot] = torch.tensor(windows[b]), torch.tensor(ids[b])
    batch = Batch.dense(signal, channels, torch.tensor([3.0, 40.0]))
    found, packed = encoder(batch), encoder(batch.packed())
    torch.testing.assert_close(found.per_window(), packed.per_window(), rtol=1e-11, atol=1e-11)
    for b in range(2):
        alone = Batch.dense(torch.tensor(windows[b])[None], torch.tensor(ids[b]), torch.tensor([[3.0, 40.0][b]]))
        torch.testing.assert_close(found.per_window()[b], encoder(alone).per_window()[0], rtol=1e-11, atol=1e-11)


def test_pads_are_pad_tokens_and_their_attention_is_zero():
    encoder = randomized(Encoder(small()))
    windows, ids = make_windows([3], 40)
    channels = torch.tensor(ids)
    channels[0, 1] = 0
    patches = make_patches(Batch.dense(torch.tensor(np.stack(windows)), channels), encoder.config)
    tokens = encoder.tokens(patches)
    torch.testing.assert_close(tokens[1], encoder.pad_token + encoder.positions)
    for block in encoder.blocks:
        assert (block._attended(tokens, patches.layout, None, None)[1] == 0).all()
    decoder = MaskedCerebro(small(), ObjectiveConfig(style="vitmae"))
    seen = []
    decoder.decoder.embed.register_forward_hook(lambda module, args, out: seen.append(args[0]))
    decoder(Batch.dense(torch.tensor(np.stack(windows)).float(), channels))
    torch.testing.assert_close(seen[0][1], decoder.encoder.pad_token + decoder.encoder.positions)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int16, torch.int32])
def test_signals_of_any_type_are_normalised_in_float32(dtype):
    """A store holds float16, whose squares overflow at 256 uV."""
    windows, ids = make_windows([3, 2], 320)
    rounded = [torch.tensor(w * 40).round().to(dtype) for w in windows]
    for patches in (PatchConfig(length=8, stride=8), PatchConfig(kind="time_bins")):
        config = small(patches=patches, window=320)
        model = randomized(MaskedCerebro(config)).float()
        noise = torch.rand(5, config.positions)
        channels = [torch.tensor(i) for i in ids]
        found = model(Batch.ragged(rounded, channels), noise)
        expected = model(Batch.ragged([r.float() for r in rounded], channels), noise)
        assert found.loss.dtype == torch.float32
        torch.testing.assert_close(found.loss, expected.loss)
        assert found.target_RNL.std() > 0.5


@pytest.mark.parametrize("style", ["simmim", "vitmae"])
@pytest.mark.parametrize("kind", KINDS)
def test_autocast_keeps_patches_and_loss_in_float32(kind, style):
    model = randomized(MaskedCerebro(small(attention=kind), ObjectiveConfig(style=style))).float()
    windows, ids = make_windows([3, 2], 40)
    batch, noise = to_batch([w.astype(np.float32) for w in windows], ids), torch.rand(5, 5)
    expected = model(batch, noise)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(batch, noise)
    assert found.loss.dtype == found.predicted_RNL.dtype == torch.float32
    assert torch.equal(found.target_RNL, expected.target_RNL)
    torch.testing.assert_close(found.loss, expected.loss, rtol=0.1, atol=0.02)
    found.loss.backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("patches", [PatchConfig(length=8, stride=8), PatchConfig(kind="time_bins", phase="separated")])
def test_batches_and_windows_of_nothing(kind, patches):
    encoder = randomized(Encoder(small(attention=kind, patches=patches, window=320)))
    none = Batch(torch.zeros(0, 320, dtype=torch.float64), torch.zeros(0, 2, dtype=torch.int64), Layout.uniform(0, 3))
    assert encoder(none).per_window().shape == (0, 12)
    windows, ids = make_windows([2, 0, 3], 320)
    found = encoder(to_batch(windows, ids)).per_window()
    assert (found[1] == 0).all()
    torch.testing.assert_close(found[[0, 2]], encoder(to_batch(windows[::2], ids[::2])).per_window())


def test_inner_layers_have_no_last_norm_and_gradients_stay_off_under_no_grad():
    model = randomized(Cerebro(config=small(depth=4)))
    batch = to_batch(*make_windows([2], 40))
    seen = []
    model.encoder.blocks[1].register_forward_hook(lambda module, args, out: seen.append(out.total()))
    inner = model.encode(batch, layer=2).x_RND
    torch.testing.assert_close(inner, seen[0])
    with torch.no_grad():
        assert not model.encode(batch).x_RND.requires_grad


def test_calls_are_split_where_kernels_demand_it(monkeypatch):
    monkeypatch.setattr("cerebro_eeg.fast.torch_attention.most_sequences", lambda device: 4)
    split = {}
    for most in (4, 2**31):
        monkeypatch.setattr("cerebro_eeg.fast.torch_attention.most_sequences", lambda device, most=most: most)
        encoder = randomized(Encoder(small(depth=2)))
        split[most] = encoder(to_batch(*make_windows([3, 5, 2], 40))).x_RND
    torch.testing.assert_close(split[4], split[2**31], rtol=1e-12, atol=1e-12)


def test_masks_with_ties_and_counts_on_the_edge_are_exact():
    layout = Layout.ragged([3, 1])
    masked = choose_masked(torch.zeros(4, 5), layout, 0.4)
    assert masked[:3].flatten().tolist() == [True] * 6 + [False] * 9  # the first ones, in order
    assert masked[3].tolist() == [True] * 2 + [False] * 3
    for rows, ratio in ((7, 0.1), (9, 0.3), (23, 0.7), (5, 0.58)):
        assert int(choose_masked(torch.rand(rows, 5), Layout.uniform(1, rows), ratio).sum()) == round(
            ratio * (rows * 5)
        )
    assert token_counts([3, 1, 4], 5, 0.5) == (8 + 2 + 10, 40 - 20)


def test_noise_of_another_shape_is_refused():
    model = randomized(MaskedCerebro(small()))
    with pytest.raises(InputError, match=r"noise_RN has the shape \(3, 1\); expected \(rows, patches\) = \(3, 5\)"):
        model(to_batch(*make_windows([3], 40)), torch.rand(3, 1, dtype=torch.float64))


def test_a_large_offset_costs_no_precision():
    x = torch.tensor(np.random.default_rng(0).normal(size=(2, 1280)) * 20)
    exact = normalize(x, small())
    found = normalize((x + 1e5).float(), small())
    rounded = normalize((x + 1e5).float().double(), small())  # what float32 can know of such a signal
    torch.testing.assert_close(found.double(), rounded, rtol=0, atol=2e-6)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-3)


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
    """4,096 windows give 81,920 sequences and more, too many for one call of torch's kernels."""
    torch.manual_seed(0)
    attention = AxisAttention(preset("small").model, axis).cuda().bfloat16()
    windows, channels, patches = (4096, 23, 20) if axis == "channels" else (4096, 23, 4)
    x = torch.randn(windows * channels, patches, 192, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    out = attention(x, Layout.uniform(windows, channels))
    out.float().square().mean().backward()
    last = attention(x[-channels:], Layout.uniform(1, channels))
    torch.testing.assert_close(out[-channels:], last, rtol=2e-2, atol=2e-2)
    assert torch.isfinite(x.grad).all()


def test_tokens_are_carried_in_half_precision_under_autocast_and_come_out_in_float32():
    """``float32_residual`` changes that; it has no effect without autocast."""
    batch = to_batch(*make_windows([3, 2], 40))
    batch = dataclasses.replace(batch, signal_RT=batch.signal_RT.float())
    encoder = randomized(Encoder(small())).float()
    seen = []
    encoder.blocks[1].register_forward_pre_hook(lambda module, args: seen.append(args[0].x_RND.dtype))
    exact = encoder(batch).x_RND
    with torch.autocast("cpu", torch.bfloat16):
        carried = encoder(batch).x_RND
        encoder.float32_residual = True
        wide = encoder(batch).x_RND
    assert seen == [exact.dtype, torch.bfloat16, torch.float32]
    assert carried.dtype == wide.dtype == torch.float32
    for found in (carried, wide):
        assert 1e-4 < (found - exact).norm() / exact.norm() < 3e-2


@pytest.mark.parametrize("kind", ["alternating", "standard"])
def test_every_block_of_a_vitmae_carries_what_was_asked_for(kind):
    batch = to_batch(*make_windows([3, 2], 40))
    batch = dataclasses.replace(batch, signal_RT=batch.signal_RT.float())
    model = MaskedCerebro(small(attention=kind), ObjectiveConfig(style="vitmae"))
    seen: list[torch.dtype] = []
    for part in (model.encoder, model.decoder):
        for block in part.blocks:
            block.register_forward_pre_hook(lambda module, args: seen.append(args[0].x_RND.dtype))
    for wide, dtype in ((False, torch.bfloat16), (True, torch.float32)):
        seen.clear()
        model.encoder.float32_residual = model.decoder.float32_residual = wide
        with torch.autocast("cpu", torch.bfloat16):
            model(batch).loss.backward()
        assert set(seen) == {dtype}


class Wrapped(torch.nn.Module):
    """A block in the wrapper of an adapter."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, *given):
        return self.block(*given)


@pytest.mark.filterwarnings("ignore")  # torch will give up this way of quantising
def test_layers_may_be_wrapped_or_quantised():
    """The model must not read the weight of a single layer, which may have none."""
    torch.manual_seed(0)
    batch = to_batch(*make_windows([3, 2], 40))
    batch = dataclasses.replace(batch, signal_RT=batch.signal_RT.float())
    encoder = randomized(Encoder(small(amplitude=True))).float().eval()
    batch = dataclasses.replace(batch, scale_R=torch.full((5,), 20.0))
    for mode in (torch.no_grad(), torch.enable_grad()):
        with mode:
            exact = encoder(batch).x_RND
            wrapped = copy.deepcopy(encoder)
            wrapped.blocks[0] = Wrapped(wrapped.blocks[0])
            torch.testing.assert_close(wrapped(batch).x_RND, exact)
            few = torch.ao.quantization.quantize_dynamic(encoder, {torch.nn.Linear}, dtype=torch.qint8)
            assert 1e-4 < (few(batch).x_RND - exact).norm() / exact.norm() < 0.1


def test_the_deterministic_lookup_of_electrodes_selects_the_same_rows():
    """The rows are equal to the bit, with pads and pairs; the row of pads gets no gradient in either way."""
    channels = torch.tensor([(3, 0), (0, 0), (7, 3), (3, 0), (9, 7)])
    weight = torch.randn(5, 6)
    found = []
    for on in (False, True):
        table = torch.randn(12, 6, generator=torch.Generator().manual_seed(1))
        table[0] = 0
        table.requires_grad_()
        with deterministic(on):
            rows = row_difference(table, channels)
        found.append((rows, torch.autograd.grad(rows, table, weight)[0]))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1])
    assert found[1][1][0].abs().sum() == 0


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("calling", [lambda f: f, torch._dynamo.run], ids=["plainly", "beside compiled code"])
def test_patches_are_gone_when_the_blocks_run(calling, norm):
    """Without gradients their memory must be free by then, also with ``torch.compile``."""
    encoder, made, alive = randomized(Encoder(small(norm=norm))), [], []
    cut = encoder.cut

    def noting_cut(batch):
        patches = cut(batch)
        made.append(weakref.ref(patches.values_RNL))
        return patches

    def look(*given):
        alive.append([it() is not None for it in made])

    encoder.cut = noting_cut
    batch = to_batch(*make_windows([3, 2], 40))
    for block in encoder.blocks:
        block.register_forward_pre_hook(look)
    with torch.no_grad():
        calling(lambda: encoder(batch))()
    assert alive == [[False], [False]]
