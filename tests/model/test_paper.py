"""One test for each claim of the paper (arXiv:2501.10885), named after it. docs/paper.md lists its open points."""

import math

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import reference as ref
from cerebro_eeg import costs, fast
from cerebro_eeg.batch import Batch, Layout
from cerebro_eeg.channels.electrodes import VOCABULARY
from cerebro_eeg.config import PRESETS, ModelConfig, ObjectiveConfig, PatchConfig, preset
from cerebro_eeg.model.attention import KINDS as MAKERS
from cerebro_eeg.model.attention import AxisAttention, BottleneckAttention, TwoAxisAttention
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.encoder import Encoder
from cerebro_eeg.model.masked import MaskedCerebro
from cerebro_eeg.model.masks import choose_masked
from cerebro_eeg.model.patches import make_patches
from tiny_models import KINDS, make_windows, randomized, small, to_batch

# ---- Tokenization --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("samples", "length", "stride"), [(1280, 64, 64), (200, 64, 64), (1280, 64, 32), (64, 64, 64)])
def test_patch_count_is_floor_of_t_minus_l_over_s_plus_1(samples, length, stride):
    expected = math.floor((samples - length) / stride + 1)
    config = small(patches=PatchConfig(length=length, stride=stride), window=samples)
    patches = make_patches(to_batch(*make_windows([2], samples)), config)
    assert config.patches.count(samples) == config.positions == patches.values_RNL.shape[1] == expected


def test_the_window_of_each_corpus_gives_the_patches_of_the_table():
    waveform, time_bins, squares = (PatchConfig(kind=kind) for kind in ("waveform", "time_bins", "squares"))
    assert [waveform.count(n) for n in (1280, 200, 200)] == [20, 3, 3]  # TUAB 5 s, SEED 1 s at 200 Hz, MoBI 2 s at 100
    assert (time_bins.count(1280), squares.count(1280)) == (40, 40)
    assert (time_bins.count(200), squares.count(200)) == (6, 0)


def test_a_token_is_projected_patch_plus_position_plus_channel():
    encoder = randomized(Encoder(small()))
    windows, ids = make_windows([3], 40)
    ids[0] = [(a, 0) for a, _ in ids[0]]
    patches = make_patches(to_batch(windows, ids), encoder.config)
    tokens = encoder.tokens(patches)
    for c, i in np.ndindex(3, 5):
        expected = encoder.embed.weight @ patches.values_RNL[c, i] + encoder.embed.bias
        expected = expected + encoder.positions[i] + encoder.electrodes[ids[0][c][0]]
        torch.testing.assert_close(tokens[c, i], expected, rtol=1e-12, atol=1e-12)


def test_channel_identity_is_the_electrode_and_a_pair_is_a_difference():
    encoder = randomized(Encoder(small()))
    windows, _ = make_windows([1], 40)
    place = {
        pair: encoder.place(make_patches(to_batch(windows, [[pair]]), encoder.config))[0, 0]
        for pair in [(5, 0), (9, 0), (5, 9), (9, 5)]
    }
    position = encoder.positions[0]
    torch.testing.assert_close(place[5, 9] - position, (place[5, 0] - position) - (place[9, 0] - position))
    torch.testing.assert_close(place[9, 5] - position, -(place[5, 9] - position))


# ---- Algorithms 1, 2, 3 --------------------------------------------------------------------------------------------


def test_algorithm_1_odd_layers_attend_over_channels_and_even_layers_over_time():
    axes = [block.attention.axis for block in Encoder(preset("small").model).blocks]
    assert axes == ["channels", "time"] * 4


def test_algorithm_1_layer_by_layer():
    """One layer of each parity against an explicit reshape to [B N, C, d] and [B C, N, d]."""
    config = small(depth=2)
    windows, channels, patches = 2, 3, 5
    x_RND = torch.randn(windows * channels, patches, config.width, dtype=torch.float64)
    for layer in (1, 2):
        attention = randomized(MAKERS["alternating"](config, layer))
        found = attention(x_RND, Layout.uniform(windows, channels))
        grid = x_RND.reshape(windows, channels, patches, -1)
        folded = grid.transpose(1, 2).flatten(0, 1) if layer == 1 else grid.flatten(0, 1)
        multi_head = _torch_multi_head(attention, config)
        out = multi_head(folded, folded, folded, need_weights=False)[0]
        out = out.reshape(windows, patches, channels, -1).transpose(1, 2) if layer == 1 else out.reshape(grid.shape)
        torch.testing.assert_close(found, out.flatten(0, 1), rtol=1e-12, atol=1e-12)


def test_algorithm_2_two_axis_is_the_mean_of_both_with_separate_qkv():
    config = small(attention="two_axis")
    attention = randomized(TwoAxisAttention(config))
    layout = Layout.uniform(2, 3)
    x_RND = torch.randn(6, 5, config.width, dtype=torch.float64)
    single = {}
    for axis, qkv in (("channels", attention.qkv), ("time", attention.qkv_time)):
        single[axis] = AxisAttention(config, axis).double()
        single[axis].qkv.load_state_dict(qkv.state_dict())
        single[axis].out.load_state_dict(attention.out.state_dict())
    expected = (single["channels"](x_RND, layout) + single["time"](x_RND, layout)) / 2
    torch.testing.assert_close(attention(x_RND, layout), expected, rtol=1e-12, atol=1e-12)


def test_two_axis_attention_adds_about_20_million_parameters_to_large():
    large = preset("large").model
    counts = [sum(costs.parameters(m).values()) for m in (ModelConfig(12, 768, 12, attention="two_axis"), large)]
    assert counts[0] - counts[1] == 21_261_312


def test_algorithm_3_bottleneck_is_constant_along_time():
    """Taken literally, its softmax averages identical values (docs/paper.md)."""
    attention = randomized(BottleneckAttention(small()))
    out = attention(torch.randn(6, 5, 12, dtype=torch.float64), Layout.uniform(2, 3))
    torch.testing.assert_close(out, out[:, :1].expand_as(out), rtol=1e-12, atol=1e-13)
    assert out.std(0).min() > 0  # but it differs between channels


def test_algorithm_3_against_the_loops():
    config = small(attention="bottleneck")
    attention = randomized(BottleneckAttention(config))
    x = np.random.default_rng(0).normal(size=(3, 5, 12))
    weights = {name: t.detach().numpy() for name, t in attention.state_dict().items()}
    expected = ref.KINDS["bottleneck"](x, 1, weights, config.heads)
    found = attention(torch.tensor(x), Layout.uniform(1, 3)).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


# ---- Complexity ----------------------------------------------------------------------------------------------------

SHAPES = [(3, 5), (7, 4), (19, 20)]


@pytest.mark.parametrize(("rows", "patches"), SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_complexity_in_flops_counted_by_torch_and_by_loops(kind, rows, patches):
    """Our closed form equals torch's own counter on the running module and the counters in the loop-written paper."""
    config = small(attention=kind)
    for layer in (1, 2):
        scores, projections, _ = costs.attention_cost(config, layer, rows, patches)
        attention = MAKERS[kind](config, layer)
        with (
            FlopCounterMode(display=False) as counter,
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        ):
            attention(torch.randn(rows, patches, config.width), Layout.uniform(1, rows))
        assert counter.get_total_flops() == scores + projections
        assert ref.count_flops(kind, rows, patches, config.width, config.heads, layer) == (scores, projections)


@pytest.mark.parametrize(("rows", "patches"), SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_complexity_in_stored_scores(kind, rows, patches):
    """The number of softmax outputs of the running module equals the closed form and the loops."""
    config = small(attention=kind)
    for layer in (1, 2):
        with fast.use("stock"), _CountSoftmax() as seen:
            MAKERS[kind](config, layer)(torch.randn(rows, patches, config.width), Layout.uniform(1, rows))
        expected = costs.attention_cost(config, layer, rows, patches)[2]
        assert seen.elements == expected == ref.count_scores(kind, rows, patches, config.heads, layer)


def test_memory_complexity_table():
    """O(C N^2) along time, O(C^2 N) across channels, O((C N)^2) for standard; bottleneck below what is printed."""
    rows, patches, heads = 23, 20, 3
    scores = {
        kind: [costs.attention_cost(small(attention=kind), n, rows, patches)[2] for n in (1, 2)] for kind in KINDS
    }
    assert scores["alternating"] == [heads * rows**2 * patches, heads * rows * patches**2]
    assert scores["standard"][0] == heads * (rows * patches) ** 2
    assert scores["two_axis"][0] == heads * rows * patches * (rows + patches)
    assert scores["bottleneck"][0] == heads * (rows**2 + patches**2) < scores["two_axis"][0]


def test_forward_flops_of_the_whole_encoder():
    for kind in KINDS:
        config = small(attention=kind, depth=4)
        windows, ids = make_windows([7], 40)
        with (
            FlopCounterMode(display=False) as counter,
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        ):
            Encoder(config).double()(to_batch(windows, ids))
        assert counter.get_total_flops() == costs.cost(config, 7, 40).flops


# ---- Pre-training --------------------------------------------------------------------------------------------------


def test_loss_is_masked_plus_alpha_times_visible():
    model = randomized(MaskedCerebro(small()))
    found = model(to_batch(*make_windows([3, 2], 40)))
    error_RN = (found.predicted_RNL - found.target_RNL).square().mean(-1)
    masked, visible = error_RN[found.masked_RN].mean(), error_RN[~found.masked_RN].mean()
    torch.testing.assert_close(found.masked_loss, masked)
    torch.testing.assert_close(found.visible_loss, visible)
    torch.testing.assert_close(found.loss, masked + 0.1 * visible)


def test_alpha_is_a_tenth_and_the_patch_error_can_be_the_sum_of_the_formula():
    assert ObjectiveConfig().alpha == 0.1
    batch, noise = to_batch(*make_windows([3], 40)), torch.rand(3, 5, dtype=torch.float64)
    mean, total = (randomized(MaskedCerebro(small(), ObjectiveConfig(patch_error=e))) for e in ("mean", "sum"))
    torch.testing.assert_close(total(batch, noise).loss, 8 * mean(batch, noise).loss)  # patches of 8 samples here


def test_half_of_the_tokens_are_masked_exactly_per_window_and_never_a_pad():
    assert ObjectiveConfig().mask_ratio == 0.5
    counts = [3, 1, 4, 23]
    layout = Layout.ragged(counts)
    masked = choose_masked(torch.rand(sum(counts), 5), layout, 0.5)
    assert [int(part.sum()) for part in masked.split(counts)] == [round(0.5 * c * 5) for c in counts]  # half to even
    real = torch.tensor([[True, True, False], [True, False, False]])
    padded = choose_masked(torch.zeros(6, 5), Layout.padded(real), 0.5).reshape(2, 3, 5)
    assert padded.sum((1, 2)).tolist() == [5, 2]
    assert not padded[~real].any()


def test_every_token_is_masked_equally_often():
    """In 4,000 draws, the share of each token is within five standard deviations of one half."""
    generator = torch.Generator().manual_seed(0)
    layout = Layout.uniform(4000, 3)
    share = choose_masked(torch.rand(12000, 4, generator=generator), layout, 0.5).reshape(4000, 3, 4).double().mean(0)
    assert (share - 0.5).abs().max() < 5 * math.sqrt(0.25 / 4000)


def test_masked_tokens_are_one_shared_learnable_token_that_still_has_its_place():
    encoder = randomized(Encoder(small()))
    patches = make_patches(to_batch(*make_windows([3], 40)), encoder.config)
    masked = torch.zeros(3, 5, dtype=torch.bool)
    masked[0, 1] = masked[2, 4] = True
    tokens = encoder.tokens(patches, masked) - encoder.place(patches)
    torch.testing.assert_close(tokens[0, 1], encoder.mask_token)
    torch.testing.assert_close(tokens[2, 4], encoder.mask_token)
    assert encoder.mask_token.requires_grad


def test_a_masked_patch_cannot_be_seen():
    """A change of masked patches changes no reconstruction; only normalisation reads them."""
    for style in ("simmim", "vitmae"):
        for kind in KINDS:
            config = small(attention=kind, normalization="none")
            model = randomized(MaskedCerebro(config, ObjectiveConfig(style=style)))
            windows, ids = make_windows([3], 40)
            noise = torch.rand(3, 5, dtype=torch.float64)
            before = model(to_batch(windows, ids), noise)
            hidden = np.repeat(before.masked_RN.numpy(), 8, axis=1)
            after = model(to_batch([np.where(hidden, windows[0] + 100, windows[0])], ids), noise)
            torch.testing.assert_close(before.predicted_RNL, after.predicted_RNL, rtol=1e-12, atol=1e-12)


def test_vitmae_encodes_visible_tokens_only_and_dropping_equals_hiding():
    """With standard attention tokens are dropped; hiding them as keys gives the same reconstruction."""
    model = randomized(MaskedCerebro(small(attention="standard"), ObjectiveConfig(style="vitmae")))
    batch, noise = to_batch(*make_windows([3, 2], 40)), torch.rand(5, 5, dtype=torch.float64)
    patches = make_patches(batch, model.config)
    masked = choose_masked(noise, patches.layout, 0.5)
    dropped = model._encode_visible(patches, masked)
    hidden = model.encoder.run(model.encoder.tokens(patches), patches.layout, ~masked)
    torch.testing.assert_close(dropped[~masked], hidden[~masked], rtol=1e-12, atol=1e-12)
    seen = []
    model.encoder.blocks[0].register_forward_hook(lambda module, args, out: seen.append(out[0].shape))
    model(batch, noise)
    assert seen[0][:2] == (int((~masked).sum()), 1)


def test_vitmae_decoder_is_light():
    model = MaskedCerebro(preset("small").model, ObjectiveConfig(style="vitmae"))
    assert len(model.decoder.blocks) == 2
    assert model.decoder.config.width == model.config.width
    assert [block.attention.axis for block in model.decoder.blocks] == ["channels", "time"]


# ---- Fine-tuning and channels --------------------------------------------------------------------------------------


def test_fine_tuning_pools_the_mean_of_all_tokens_into_one_linear_layer():
    model = randomized(Cerebro(4, config=small()))
    batch = to_batch(*make_windows([3, 2], 40))
    tokens = model.encoder(batch).x_RND.split([3, 2])
    pooled = torch.stack([t.mean((0, 1)) for t in tokens])
    torch.testing.assert_close(model(batch), pooled @ model.final_layer.weight.T + model.final_layer.bias)
    assert isinstance(model.final_layer, torch.nn.Linear)


def test_pad_scores_are_zero_and_pads_influence_nothing():
    """No content of a padded channel changes a real token, and no gradient reaches it."""
    for kind in KINDS:
        encoder = randomized(Encoder(small(attention=kind)))
        windows, ids = make_windows([4], 40)
        channels = torch.tensor(ids)
        channels[0, 2] = 0
        signal = torch.tensor(np.stack(windows)).requires_grad_()
        found = encoder(Batch.dense(signal, channels)).x_RND
        found.sum().backward()
        assert (signal.grad[0, 2] == 0).all()
        other = torch.tensor(np.stack(windows))
        other[0, 2] += torch.randn(40) * 50
        torch.testing.assert_close(encoder(Batch.dense(other, channels)).x_RND, found, rtol=0, atol=0)
        assert (found[2] == 0).all()


def test_the_maximum_of_channels_is_64_by_default():
    assert {p.model.max_channels for p in PRESETS.values()} == {64}


# ---- Sizes and hyper-parameters ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "millions"), [("small", 3.58), ("base", 39.95), ("large", 85.15)])
def test_sizes(name, millions):
    config = preset(name).model
    counted = sum(costs.parameters(config).values())
    assert counted / 1e6 == pytest.approx(millions, rel=1e-3)
    d = config.width
    assert counted == config.depth * (12 * d * d + 13 * d) + (64 + 1 + 2 + 20 + 23 + 2) * d


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("style", [None, "simmim", "vitmae"])
def test_counted_parameters_are_those_of_the_modules(name, style):
    config = preset(name).model
    with torch.device("meta"):
        objective = None if style is None else ObjectiveConfig(style=style, decoder_width=96)
        module = Encoder(config) if objective is None else MaskedCerebro(config, objective)
    parts = costs.parameters(config, objective, electrode_rows=len(VOCABULARY) + 1)
    assert sum(parts.values()) == sum(p.numel() for p in module.parameters())


def test_pre_training_hyper_parameters():
    for name, depth, width, mlp in (("small", 8, 192, 768), ("base", 10, 576, 2304), ("large", 12, 768, 3072)):
        p = preset(name)
        assert (p.model.depth, p.model.width, p.model.heads, p.model.hidden) == (depth, width, 12, mlp)
        assert (p.model.patches.length, p.objective.mask_ratio) == (64, 0.5)
        t = p.pretrain
        assert (t.batch_size, t.betas, t.peak_lr, t.min_lr) == (4096, (0.9, 0.98), 1.25e-3, 2.5e-7)
        assert (t.max_epochs, t.stop_epoch, t.warmup_epochs, t.weight_decay) == (100, 30, 3, 0.05)


def test_fine_tuning_hyper_parameters():
    for name, drop_path in (("small", 0.1), ("base", 0.2), ("large", 0.2)):
        t = preset(name).finetune
        assert (t.batch_size, t.betas, t.peak_lr, t.min_lr) == (4096, (0.9, 0.999), 5e-4, 2.5e-7)
        assert (t.epochs, t.warmup_epochs, t.layer_decay, t.weight_decay) == (50, 5, 0.75, 0.05)
        assert (t.noise_ratio, t.noise_probability, t.drop_path, t.label_smoothing) == (0.2, 0.5, drop_path, 0.1)


# ---- Spectrograms --------------------------------------------------------------------------------------------------


def test_interleaved_and_separated_phase_are_the_same_model_up_to_a_permutation():
    results = {}
    for order in ("interleaved", "separated"):
        config = small(patches=PatchConfig(kind="time_bins", phase=order), window=320)
        encoder = randomized(Encoder(config), seed=3)
        results[order] = encoder(to_batch(*make_windows([2, 3], 320)))
    a, b = (results[k].x_RND.split([4, 6]) for k in ("interleaved", "separated"))
    for interleaved, separated, channels in zip(a, b, (2, 3), strict=True):
        order = [2 * c + kind for kind in (0, 1) for c in range(channels)]
        torch.testing.assert_close(interleaved[order], separated, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(*(results[k].per_window() for k in results), rtol=1e-11, atol=1e-11)


def test_phase_doubles_the_tokens():
    plain, phase = (small(patches=PatchConfig(kind="time_bins", phase=p), window=320) for p in ("none", "interleaved"))
    assert costs.cost(phase, 23, 1280).tokens == 2 * costs.cost(plain, 23, 1280).tokens == 2 * 23 * 40


def _torch_multi_head(attention, config):
    """torch's own multi-head attention with the weights of ours."""
    multi_head = torch.nn.MultiheadAttention(config.width, config.heads, batch_first=True, dtype=torch.float64)
    multi_head.in_proj_weight.data, multi_head.in_proj_bias.data = attention.qkv.weight.data, attention.qkv.bias.data
    multi_head.out_proj.load_state_dict(attention.out.state_dict())
    return multi_head.eval()


class _CountSoftmax(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the elements that softmax produces when attention is computed step by step."""

    def __enter__(self):
        self.elements = 0
        self.kernel = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
        self.kernel.__enter__()
        return super().__enter__()

    def __exit__(self, *args):
        super().__exit__(*args)
        self.kernel.__exit__(*args)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if "softmax" in func.__name__:
            self.elements += out.numel()
        return out
