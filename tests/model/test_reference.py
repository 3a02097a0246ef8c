"""Results computed by hand that the loop-written reference (tests/reference.py) must give, without the package."""

import math

import numpy as np
import pytest
from scipy.special import erf

import reference as ref

KINDS = list(ref.KINDS)
L, D, HEADS, P, V, M = 6, 8, 2, 5, 9, 12


def draw_weights(seed=0, kind="alternating", depth=2, decoder=0):
    """Return random weights of a small encoder, or of a masked model if it has a decoder."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return rng.normal(scale=0.5, size=shape)

    def stack(count):
        out = {}
        for i in range(count):
            shapes = {
                "norm1": (D,),
                "attention.qkv": (3 * D, D),
                "attention.out": (D, D),
                "norm2": (D,),
                "mlp.up": (M, D),
                "mlp.down": (D, M),
            }
            if kind == "two_axis":
                shapes["attention.qkv_time"] = (3 * D, D)
            for name, shape in shapes.items():
                out[f"blocks.{i}.{name}.weight"], out[f"blocks.{i}.{name}.bias"] = draw(*shape), draw(shape[0])
        return out | {"norm.weight": draw(D), "norm.bias": draw(D)}

    weights = stack(depth) | {"embed.weight": draw(D, L), "embed.bias": draw(D)}
    weights |= {"positions": draw(P, D), "electrodes": draw(V, D), "mask_token": draw(D), "pad_token": draw(D)}
    weights |= {"phase": draw(D), "amplitude.weight": draw(D, 1), "amplitude.bias": draw(D)}
    if not decoder:
        return weights
    masked = {f"encoder.{name}": array for name, array in weights.items()}
    masked |= {f"decoder.{name}": array for name, array in stack(decoder).items()}
    masked |= {"decoder.embed.weight": draw(D, D), "decoder.embed.bias": draw(D)}
    return masked | {"reconstruct.weight": draw(L, D), "reconstruct.bias": draw(L)}


def draw_window(seed=1, C=3, N=4):
    patches = np.random.default_rng(seed).normal(size=(C, N, L))
    return patches, [(1, 0), (2, 5), (7, 0)][:C]


# --- windows and patches ---


@pytest.mark.parametrize(("samples", "patches"), [(1280, 20), (200, 3), (64, 1), (63, 0)])
def test_number_of_patches(samples, patches):
    assert ref.n_patches(samples, 64, 64) == patches


def test_patches_with_a_stride_leave_out_the_rest():
    x = np.arange(8.0)[np.newaxis]
    assert ref.waveform_patches(x, 4, 2).tolist() == [[[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7]]]
    assert ref.waveform_patches(x, 3, 3).tolist() == [[[0, 1, 2], [3, 4, 5]]]


def test_normalisations_of_a_small_window():
    x = np.array([[1.0, 3.0], [0.1, 0.1]])  # population std of the first channel is 1
    assert ref.normalize(x, "zscore").tolist() == [[-1, 1], [0, 0]]
    assert ref.normalize(x, "minmax").tolist() == [[-1, 1], [0, 0]]
    assert ref.normalize(x, "recording", scale=4.0).tolist() == [[-0.25, 0.25], [0, 0]]
    assert ref.normalize(x, "scale", fixed=10.0)[0].tolist() == [0.1, 0.3]
    assert ref.normalize(x, "none").tolist() == x.tolist()


# --- spectrograms ---


@pytest.mark.parametrize(("samples", "frames"), [(1280, 40), (200, 6), (64, 2)])
def test_number_of_frames(samples, frames):
    x = np.random.default_rng(0).normal(size=(1, samples))
    magnitude, phase = ref.spectrogram(x)
    assert magnitude.shape == phase.shape == (1, frames, 64)
    assert math.isclose(magnitude.mean(), 0.0, abs_tol=1e-12)
    assert math.isclose(magnitude.std(), 1.0)
    assert phase.min() > -1.0
    assert phase.max() <= 1.0


def test_cosine_peaks_in_its_bin_with_its_phase():
    samples = np.arange(1280)
    magnitude, phase = ref.spectrogram(np.cos(2 * np.pi * 10 * samples / 128)[np.newaxis])
    inside = slice(2, 38)  # frames that see no reflection
    assert (magnitude[0, inside].argmax(axis=1) == 9).all()  # bin 10; index 0 is bin 1
    for frame in range(2, 38):
        start = frame * 32 - 48  # where this frame begins in the unpadded signal
        assert math.isclose(
            math.cos(math.pi * phase[0, frame, 9]), math.cos(2 * np.pi * 10 * start / 128), abs_tol=1e-9
        )


def test_frame_is_the_written_out_fourier_sum():
    x = np.random.default_rng(3).normal(size=128)
    _, phase = ref.spectrogram(x[np.newaxis])
    mirrored = [x[abs(t)] if t < 128 else x[254 - t] for t in range(-48, 176)]
    sums = np.zeros((4, 64), dtype=complex)
    for f in range(4):
        for b in range(64):
            for t in range(128):
                hann = math.sin(math.pi * t / 128) ** 2
                sums[f, b] += hann * mirrored[f * 32 + t] * np.exp(-2j * math.pi * (b + 1) * t / 128)
    np.testing.assert_allclose(phase[0, :, :63], np.angle(sums)[:, :63] / np.pi, atol=1e-9)
    assert (phase[0, :, 63] == np.where(sums[:, 63].real < 0, 1.0, 0.0)).all()  # the Nyquist bin is real

    sizes = np.abs(sums)
    floor = 1e-3 * np.sort(sizes.ravel())[127]  # the lower of the two middle ones of 256
    logs = np.log(np.maximum(sizes, floor))
    magnitude, _ = ref.spectrogram(x[np.newaxis])
    np.testing.assert_allclose(magnitude[0], (logs - logs.mean()) / logs.std(), atol=1e-9)


def test_floor_is_a_thousandth_of_the_lower_median():
    x = np.random.default_rng(4).normal(size=256)
    x[:128] *= 1e-6  # the first two frames lie wholly inside the quiet half: below the floor
    padded, sizes = np.pad(x, 48, mode="reflect"), []
    for f in range(8):
        hann = np.sin(np.pi * np.arange(128) / 128) ** 2
        sizes.append(np.abs(np.fft.rfft(hann * padded[f * 32 : f * 32 + 128]))[1:])
    ordered = np.sort(np.ravel(sizes))
    logs = np.log(np.maximum(sizes, 1e-3 * ordered[255]))  # 512 values: 255 is the lower middle one
    assert (logs[:2] == math.log(1e-3 * ordered[255])).all()
    magnitude, _ = ref.spectrogram(x[np.newaxis])
    np.testing.assert_allclose(magnitude[0], (logs - logs.mean()) / logs.std(), atol=1e-9)


def test_flat_channel_gives_zeros():
    for level in (0.0, 7.3):
        for part in ref.spectrogram(np.full((1, 256), level)):
            assert not part.any()


def test_square_tokens_run_time_first():
    frames = np.arange(20 * 64.0).reshape(1, 20, 64)  # 20 frames: the last 4 are unused
    patches = ref.square_patches(frames)
    assert patches.shape == (1, 16, 64)
    assert patches[0, 0, :9].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 64]
    assert patches[0, 1, 0] == 8
    assert patches[0, 8, 0] == 8 * 64
    assert (ref.time_patches(frames) == frames).all()


def test_phase_orders():
    magnitude, phase = np.array([[1.0], [2.0]]), np.array([[-1.0], [-2.0]])
    assert ref.with_phase(magnitude, phase, "interleaved").ravel().tolist() == [1, -1, 2, -2]
    assert ref.with_phase(magnitude, phase, "separated").ravel().tolist() == [1, 2, -1, -2]


# --- positions ---


def test_positions_are_sliced_or_stretched():
    table = np.array([[0.0], [4.0]])
    assert ref.positions(table, 1).tolist() == [[0]]
    assert ref.positions(table, 4).ravel().tolist() == [0, 1, 3, 4]  # centres at -1/4, 1/4, 3/4, 5/4
    np.testing.assert_allclose(ref.positions(table, 3).ravel(), [0, 2, 4])  # centres at -1/6, 1/2, 7/6


def test_positions_of_squares_stretch_each_frequency_apart():
    table = np.array([[0.0], [100.0], [4.0], [104.0]])  # two times of two frequencies
    assert ref.positions(table, 8, squares=2).ravel().tolist() == [0, 100, 1, 101, 3, 103, 4, 104]
    assert ref.positions(table, 2, squares=2).ravel().tolist() == [0, 100]


# --- attention ---


def test_two_tokens_by_hand():
    q, k, v = np.array([[1.0]]), np.array([[0.0], [math.log(3)]]), np.array([[0.0], [4.0]])
    np.testing.assert_allclose(ref.attend(q, k, v), [[3.0]])  # weights 1/4 and 3/4
    assert ref.attend(q, k, v, [True, False]).tolist() == [[0]]
    assert ref.attend(q, k, v, [False, False]).tolist() == [[0]]
    q, k = np.array([[2.0, 0, 0, 0]]), np.array([[0.0, 0, 0, 0], [math.log(3), 0, 0, 0]])
    np.testing.assert_allclose(ref.attend(q, k, v), [[3.0]])  # 2 log 3 / sqrt(4)


def test_heads_own_contiguous_rows_in_the_order_q_k_v():
    weights = {"qkv.weight": np.vstack([np.eye(2), 2 * np.eye(2), 3 * np.eye(2)]), "qkv.bias": np.zeros(6)}
    x = np.array([[1.0, 0.0], [0.0, 1.0]])
    out = ref.multi_head(x, weights, heads=2)
    high = 3 * math.exp(2) / (math.exp(2) + 1)  # the query 1 scores 2 with itself and 0 with the other
    np.testing.assert_allclose(out, [[high, 1.5], [1.5, high]])


def attention_weights(kind, seed=0):
    return ref.under(draw_weights(seed, kind, depth=1), "blocks.0.attention.")


@pytest.mark.parametrize(
    ("layer", "first", "mixes_channels"),
    [(1, "channels", True), (2, "channels", False), (3, "channels", True), (1, "time", False), (2, "time", True)],
)
def test_alternating_layers_mix_one_axis(layer, first, mixes_channels):
    weights = attention_weights("alternating")
    x = np.random.default_rng(5).normal(size=(3, 4, D))
    changed = x.copy()
    changed[1, 2] += 1.0
    args = (layer, weights, HEADS, None, None, first)
    moved = (ref.alternating(x, *args) != ref.alternating(changed, *args)).any(axis=2)
    expected = np.zeros((3, 4), dtype=bool)
    expected[(slice(None), 2) if mixes_channels else 1] = True
    assert (moved == expected).all()


def test_two_axis_is_the_mean_of_both_axes():
    weights = attention_weights("two_axis")
    time = weights | {"qkv.weight": weights["qkv_time.weight"], "qkv.bias": weights["qkv_time.bias"]}
    x = np.random.default_rng(5).normal(size=(3, 4, D))
    both = ref.alternating(x, 1, weights, HEADS) + ref.alternating(x, 2, time, HEADS)
    np.testing.assert_allclose(ref.two_axis(x, 1, weights, HEADS), both / 2)


def test_bottleneck_is_constant_along_time():
    weights = attention_weights("bottleneck")
    x = np.random.default_rng(5).normal(size=(3, 4, D))
    out = ref.bottleneck(x, 1, weights, HEADS)
    np.testing.assert_allclose(out, np.repeat(out[:, :1], 4, axis=1), atol=1e-14)
    assert (np.abs(out[0] - out[1]) > 1e-3).any()
    # and equals plain attention over the time averages, because the projections are affine
    pooled = ref.alternating(x.mean(axis=1, keepdims=True), 1, weights, HEADS)
    np.testing.assert_allclose(out[:, :1], pooled)


def test_all_kinds_agree_on_one_channel_or_one_patch():
    weights = attention_weights("alternating")
    x = np.random.default_rng(5).normal(size=(1, 4, D))
    np.testing.assert_allclose(ref.standard(x, 1, weights, HEADS), ref.alternating(x, 2, weights, HEADS))
    x = x.reshape(4, 1, D)
    np.testing.assert_allclose(ref.standard(x, 1, weights, HEADS), ref.alternating(x, 1, weights, HEADS))
    np.testing.assert_allclose(ref.standard(x, 1, weights, HEADS), ref.bottleneck(x, 1, weights, HEADS))


@pytest.mark.parametrize("kind", KINDS)
def test_padded_queries_give_zeros_in_spite_of_the_output_bias(kind):
    x = np.random.default_rng(5).normal(size=(3, 4, D))
    out = ref.KINDS[kind](x, 1, attention_weights(kind), HEADS, np.array([True, False, True]))
    assert not out[1].any()
    assert out[0].any()


# --- encoder ---


def test_gelu_and_layer_norm():
    x = np.linspace(-4, 4, 33)
    np.testing.assert_allclose(ref.gelu(x), x * (1 + erf(x / math.sqrt(2))) / 2, atol=1e-15)
    ones, zeros = np.ones(2), np.zeros(2)
    assert ref.layer_norm(np.array([1.0, 3.0]), ones, zeros, eps=0.0).tolist() == [-1, 1]
    assert ref.layer_norm(np.array([1.0, 3.0]), 2 * ones, ones, eps=3.0).tolist() == [0, 2]


def test_block_orders_of_the_norm():
    weights = {name: np.zeros_like(array) for name, array in ref.under(draw_weights(depth=1), "blocks.0.").items()}
    weights["norm1.weight"] += 1.0
    weights["norm2.weight"] += 1.0
    weights["attention.out.bias"] += 1.0  # attention gives 1 and the MLP 2 everywhere
    weights["mlp.down.bias"] += 2.0
    x = np.tile([1.0, 3.0], D // 2).reshape(1, 1, D)
    pre, post = (ref.Settings(heads=HEADS, norm=norm, eps=0.0) for norm in ("pre", "post"))
    assert ref.block(x, 1, weights, pre).ravel()[:2].tolist() == [4, 6]
    assert ref.block(x, 1, weights, post).ravel()[:2].tolist() == [-1, 1]
    # with one final norm for pre-norm only
    final = {"norm.weight": np.ones(D), "norm.bias": np.zeros(D)}
    whole = {f"blocks.0.{name}": array for name, array in weights.items()}
    assert ref.run_blocks(x, whole | final, pre).ravel()[:2].tolist() == [-1, 1]
    assert ref.run_blocks(x, whole, post).ravel()[:2].tolist() == [-1, 1]


def test_tokens_are_patch_position_and_channel():
    weights = draw_weights()
    patches, ids = draw_window()
    masked = np.zeros((3, 4), dtype=bool)
    masked[1, 2] = True
    kwargs = {"real": [True, True, False], "masked": masked, "phase_rows": [False, True, False]}
    x = ref.embed(patches, ids, weights, ref.Settings(), amplitude=[2.0, -1.0, 3.0], **kwargs)
    places, electrodes = weights["positions"], weights["electrodes"]
    loud = weights["amplitude.weight"][:, 0]
    patch = weights["embed.weight"] @ patches[0, 3] + weights["embed.bias"]
    np.testing.assert_allclose(x[0, 3], patch + places[3] + electrodes[1] + 2 * loud + weights["amplitude.bias"])
    pair = electrodes[2] - electrodes[5] + weights["phase"] - loud + weights["amplitude.bias"]
    np.testing.assert_allclose(x[1, 2], weights["mask_token"] + places[2] + pair)
    np.testing.assert_allclose(x[2, 0], weights["pad_token"] + places[0] + electrodes[7])


def test_id_zero_counts_as_zero_for_any_content_of_its_row():
    weights = draw_weights()
    assert not ref.channel_embedding((0, 0), weights).any()
    assert (ref.channel_embedding((0, 3), weights) == -weights["electrodes"][3]).all()


def test_log_ratio_is_clipped():
    x = np.array([[-1.0, 1.0], [-1e9, 1e9], [0.1, 0.1]])
    np.testing.assert_allclose(ref.log_ratio(x, 2.0), [-math.log(2), 5, -5])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_pads_and_order_of_channels_do_not_matter(kind, norm):
    weights, settings = draw_weights(kind=kind), ref.Settings(kind, HEADS, norm)
    patches, ids = draw_window()
    plain = ref.encoder(patches, ids, weights, settings)
    order = [2, 0, 1]
    permuted = ref.encoder(patches[order], [ids[c] for c in order], weights, settings)
    np.testing.assert_allclose(permuted, plain[order], atol=1e-12)
    padded_patches = np.concatenate([np.full((1, 4, L), 99.0), patches])
    real = np.array([False, True, True, True])
    padded = ref.encoder(padded_patches, [(0, 0), *ids], weights, settings, real)
    np.testing.assert_allclose(padded[1:], plain, atol=1e-12)


def test_phase_orders_are_one_model_up_to_a_permutation():
    rng = np.random.default_rng(7)
    magnitude, phase, ids = rng.normal(size=(3, 4, L)), rng.normal(size=(3, 4, L)), draw_window()[1]
    outs = {}
    for order in ("interleaved", "separated"):
        layout = ref.phase_layout(3, order)
        rows = ref.with_phase(magnitude, phase, order)
        is_phase = [row[1] for row in layout]
        out = ref.encoder(rows, [ids[c] for c, _ in layout], draw_weights(), ref.Settings(heads=2), phase_rows=is_phase)
        outs[order] = {row: out[i] for i, row in enumerate(layout)}
    for row, features in outs["interleaved"].items():
        np.testing.assert_allclose(features, outs["separated"][row], atol=1e-12)


# --- masks and loss ---


def test_mask_count_rounds_half_to_even():
    assert [ref.mask_count(0.5, n) for n in (1, 3, 5, 7, 460)] == [0, 2, 2, 4, 230]
    for n in range(200):
        for ratio in (0.0, 0.15, 0.3, 0.5, 0.75, 1.0):
            assert ref.mask_count(ratio, n) == round(ratio * n)


def test_mask_takes_the_smallest_noise_of_real_tokens():
    noise = np.array([[0.9, 0.1], [0.0, 0.0], [0.2, 0.3]])
    masked = ref.mask_from_noise(noise, 0.5, [True, False, True])
    assert masked.tolist() == [[False, True], [False, False], [True, False]]


def test_loss_by_hand():
    target, prediction = np.zeros((3, 2, 2)), np.zeros((3, 2, 2))
    prediction[0, 0] = [1, 3]  # masked: mean square 5
    prediction[0, 1] = [2, 0]  # visible: 2; the other visible ones are right
    prediction[2] = 100.0  # a pad
    masked = np.array([[True, False], [True, False], [False, False]])
    total, part, visible = ref.masked_loss(target, prediction, masked, [True, True, False], alpha=0.1)
    assert (part, visible) == (2.5, 1.0)
    assert math.isclose(total, 2.6)


def test_loss_of_a_batch_counts_tokens_not_windows():
    targets = [np.zeros((1, 1, 1)), np.zeros((3, 1, 1))]
    predictions = [np.full((1, 1, 1), 2.0), np.zeros((3, 1, 1))]
    masks = [np.ones((1, 1), dtype=bool), np.ones((3, 1), dtype=bool)]
    assert ref.loss_of_batch(targets, predictions, masks, alpha=0.1) == (1.0, 1.0, 0.0)


# --- masked models and the classifier ---


def draw_mask():
    masked = np.zeros((3, 4), dtype=bool)
    masked[0, :] = masked[:, 1] = True  # a whole channel and a whole time step
    return masked


@pytest.mark.parametrize("kind", KINDS)
def test_masked_models_never_see_what_they_reconstruct(kind):
    weights, settings, masked = draw_weights(kind=kind, decoder=1), ref.Settings(kind, HEADS), draw_mask()
    patches, ids = draw_window()
    others = np.where(masked[:, :, np.newaxis], 50.0, patches)
    for model in (ref.simmim, ref.vitmae):
        out = model(patches, ids, weights, settings, masked)
        assert out.shape == patches.shape
        np.testing.assert_allclose(model(others, ids, weights, settings, masked), out, atol=1e-11)
        real = np.array([True, True, True, False])
        with_pad = np.concatenate([patches, np.full((1, 4, L), 9.0)])
        longer = np.concatenate([masked, np.zeros((1, 4), dtype=bool)])
        padded = model(with_pad, [*ids, (0, 0)], weights, settings, longer, real)
        np.testing.assert_allclose(padded[:3], out, atol=1e-11)


def test_dropping_tokens_equals_hiding_them_with_standard_attention():
    weights, settings, masked = draw_weights(), ref.Settings("standard", HEADS), draw_mask()
    patches, ids = draw_window()
    dropped = ref.visible_features(patches, ids, weights, settings, masked)
    hidden = ref.encoder(patches, ids, weights, settings, hidden=masked)
    np.testing.assert_allclose(dropped[~masked], hidden[~masked], atol=1e-12)
    assert not dropped[masked].any()


def test_decoder_adds_the_places_again():
    weights, patches, ids = draw_weights(depth=0, decoder=0), *draw_window()
    masked_model = {f"encoder.{name}": array for name, array in weights.items()}
    masked_model |= {"decoder.embed.weight": np.eye(D), "decoder.embed.bias": np.zeros(D)}
    masked_model |= {"reconstruct.weight": np.eye(L, D), "reconstruct.bias": np.zeros(L)}
    settings = ref.Settings(heads=HEADS, norm="post")  # no block and no norm: only tokens and places
    out = ref.vitmae(patches, ids, masked_model, settings, draw_mask())
    place = weights["positions"][2] + weights["electrodes"][7]
    patch = weights["embed.weight"] @ patches[2, 2] + weights["embed.bias"]
    np.testing.assert_allclose(out[2, 2], (patch + 2 * place)[:L])
    place = weights["positions"][1] + weights["electrodes"][7]
    np.testing.assert_allclose(out[2, 1], (weights["mask_token"] + place)[:L])


def test_classifier_is_the_mean_of_real_tokens():
    features = np.array([[[1.0, 0.0], [3.0, 0.0]], [[99.0, 99.0], [99.0, 99.0]]])
    weights = {"final_layer.weight": np.array([[1.0, 5.0], [-1.0, 5.0]]), "final_layer.bias": np.array([0.0, 10.0])}
    assert ref.classify(features, [True, False], weights).tolist() == [2, 8]


# --- costs ---


def test_counts_of_a_small_layer():
    C, N, width, heads = 2, 3, 4, 2
    scores = [ref.count_scores(kind, C, N, heads) for kind in ("standard", "alternating", "two_axis", "bottleneck")]
    assert scores == [2 * 36, 2 * 3 * 4, 2 * (3 * 4 + 2 * 9), 2 * (4 + 9)]
    assert ref.count_scores("alternating", C, N, heads, layer_number=2) == 2 * 2 * 9
    assert ref.count_flops("standard", C, N, width, heads) == (4 * 36 * 4, 2 * 6 * 4 * 16)
    assert ref.count_flops("alternating", C, N, width, heads) == (4 * 12 * 4, 2 * 6 * 4 * 16)
    assert ref.count_flops("two_axis", C, N, width, heads) == (4 * 30 * 4, 2 * 6 * 7 * 16)
    assert ref.count_flops("bottleneck", C, N, width, heads) == (2 * 4 * (2 * 4 + 9 + 2 * 9), 2 * 6 * 4 * 16)
