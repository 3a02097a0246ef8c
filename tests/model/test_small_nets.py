"""The small networks learn what they should from new subjects, and their training is honest and repeatable."""

import itertools
import math
import re

import numpy as np
import pytest
import torch
from scipy.linalg import logm
from sklearn.metrics import roc_auc_score
from torch import nn

from cerebro_eeg.errors import CerebroError, ConfigError, InputError, TrainingError
from cerebro_eeg.model import small_nets
from cerebro_eeg.model.bands import learned_bands, upper
from cerebro_eeg.model.matrix_log import divided_differences, matrix_log
from cerebro_eeg.model.small_nets import BAND_EDGES, BandHead, EegNet, hold_out_fifth, learn_bands, train_net

KINDS = (EegNet, BandHead)
SHAPES = ((14, 1280, 256.0), (32, 1280, 256.0), (18, 64, 64.0), (4, 256, 256.0), (3, 10, 256.0), (1, 5, 4.0))


def positive_definite(*shape, seed=0):
    root = np.random.default_rng(seed).normal(size=(*shape, 2 * shape[-1]))
    return root @ np.swapaxes(root, -1, -2) / shape[-1]


def alpha_windows(subjects, each=24, channels=4, samples=256, strength=2.0, seed=0):
    """Return noise, labels and subjects. Class 1 has more power at 10 Hz; each subject mixes channels in its way."""
    draw = np.random.default_rng(seed)
    time = np.arange(samples) / 256
    x, y, groups = [], [], []
    for subject in range(subjects):
        mixing = np.eye(channels) + 0.3 * draw.normal(size=(channels, channels))
        for number in range(each):
            label = number % 2
            noise = draw.normal(size=(channels, samples))
            alpha = np.cos(2 * np.pi * 10 * time + draw.uniform(0, 2 * np.pi)) * draw.normal(size=(channels, 1))
            x.append(mixing @ (noise + (0.3 + strength * label) * alpha))
            y.append(label)
            groups.append(f"{seed}-{subject}")
    return np.array(x, np.float32), np.array(y), np.array(groups)


class Linear(nn.Module):
    """A head on the means of channels, the quickest network there is."""

    def __init__(self, channels, samples, outputs, sfreq):
        super().__init__()
        self.head = nn.Linear(channels, outputs)

    def forward(self, x):
        return self.head(x.mean(-1))


def signatures(subjects, each=10, seed=0):
    """Return windows that tell the subject by the means of their channels, its number, and its name."""
    draw = np.random.default_rng(seed)
    subject = np.repeat(np.arange(subjects), each)
    x = draw.normal(size=(len(subject), subjects, 8)) + 10 * np.eye(subjects)[subject][:, :, None]
    return x.astype(np.float32), subject, np.array([f"s{number}" for number in subject])


# The matrix logarithm.


def test_the_logarithm_of_known_matrices():
    values = torch.tensor([0.5, 1.0, 4.0], dtype=torch.float64)
    torch.testing.assert_close(matrix_log(values.diag()), values.log().diag())
    torch.testing.assert_close(matrix_log(torch.eye(5)), torch.zeros(5, 5))
    two = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)  # eigenvalues 3 and 1
    torch.testing.assert_close(matrix_log(two), torch.full((2, 2), math.log(3) / 2, dtype=torch.float64))


def test_the_logarithm_is_that_of_scipy():
    matrices = positive_definite(3, 2, 6, 6)
    expected = np.array([[logm(matrix) for matrix in row] for row in matrices])
    np.testing.assert_allclose(matrix_log(torch.tensor(matrices)), expected, atol=1e-11)
    np.testing.assert_allclose(matrix_log(torch.tensor(matrices, dtype=torch.float32)), expected, atol=1e-4)


@pytest.mark.parametrize(
    "matrix",
    [
        positive_definite(2, 4, 4),
        np.eye(4),
        np.diag([1.0, 1.0, 3.0, 3.0]),
        np.diag([1.0, 1 + 1e-9, 2.0, 50.0]),
        np.diag([0.01, 1.0, 1.0, 100.0]),
    ],
    ids=["any", "identity", "pairs", "nearly equal", "far apart"],
)
def test_the_gradient_of_the_logarithm(matrix):
    assert torch.autograd.gradcheck(matrix_log, torch.tensor(matrix, requires_grad=True))


def test_the_gradient_is_that_of_finite_differences_of_scipy():
    matrix, towards, weight = positive_definite(5, 5), positive_definite(5, 5, seed=1), positive_definite(5, 5, seed=2)
    leaf = torch.tensor(matrix, requires_grad=True)
    (matrix_log(leaf) * torch.tensor(weight)).sum().backward()
    step = 1e-5
    change = (logm(matrix + step * towards) - logm(matrix - step * towards)) / (2 * step)
    np.testing.assert_allclose((leaf.grad.numpy() * towards).sum(), (weight * change).sum(), rtol=1e-7)


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_divided_differences_keep_their_digits(dtype, digits):
    """The plain quotient would have none left for neighbours; far apart, the other form would be infinite."""
    values = torch.tensor([1e-12, 1.0, 1 + 3e-7, 1.5, 2.9, 3.1, 1e9], dtype=dtype)
    found = divided_differences(values).double()
    exact = values.numpy().astype(np.longdouble)
    with np.errstate(invalid="ignore"):
        quotient = (np.log(exact)[:, None] - np.log(exact)) / (exact[:, None] - exact)
    # For neighbours, the quotient is 1 over their logarithmic mean, by its series around the middle.
    gap, middle = exact[:, None] - exact, (exact[:, None] + exact) / 2
    series = (1 + (gap / middle) ** 2 / 12) / middle
    expected = np.where(abs(gap / middle) < 1e-4, series, quotient).astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=digits)


def test_rounding_does_not_make_the_logarithm_infinite():
    root = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    assert matrix_log(root @ root.mT).isfinite().all()  # of rank 2


# The networks.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("channels", "samples", "sfreq"), SHAPES)
def test_shapes(kind, channels, samples, sfreq):
    torch.manual_seed(0)
    net = kind(channels, samples, 3, sfreq)
    x = torch.randn(2, channels, samples)
    loss = net(x).square().sum() + net(x)[0, 1]
    loss.backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in net.parameters())
    found = net.eval()(x)
    assert found.shape == (2, 3)
    assert found.isfinite().all()


@pytest.mark.parametrize("sfreq", [128.0, 256.0])
def test_eegnet_has_the_size_of_the_paper(sfreq):
    """Its table counts weights at 128 Hz, of convolutions, of norms (two per filter) and of the head."""
    channels, seconds, outputs, kernel = 64, 1, 4, round(sfreq / 2)
    net = EegNet(channels, round(sfreq * seconds), outputs, sfreq)
    filters, wide = 8, 16
    first = kernel * filters + 2 * filters + channels * wide + 2 * wide
    second = 16 * wide + wide * wide + 2 * wide
    head = outputs * wide * (128 * seconds // 32) + outputs  # the last are biases
    assert sum(weight.numel() for weight in net.parameters()) == first + second + head


@pytest.mark.parametrize("kind", KINDS)
def test_a_flat_window_has_a_finite_output_and_gradient(kind):
    net = kind(4, 256, 2)
    x = torch.randn(6, 4, 256, generator=torch.Generator().manual_seed(0))
    x[0], x[1, 2] = 0, 0
    nn.init.normal_(net.head.weight, generator=torch.Generator().manual_seed(0))
    net(x).square().sum().backward()
    assert all(weight.grad.isfinite().all() for weight in net.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_another_shape_is_refused(kind):
    with pytest.raises(InputError, match=r"shape \(2, 4, 128\); expected \(windows, 4, 256\)"):
        kind(4, 256, 2)(torch.zeros(2, 4, 128))
    with pytest.raises(ConfigError, match="0 channels"):
        kind(0, 256, 2)


def test_bands_start_where_they_should():
    net = BandHead(2, 2560, 2)
    frequency, weight = net.bins_F, net.band_weights()
    torch.testing.assert_close(weight.sum(1), torch.ones(6))
    peak = frequency[weight.argmax(1)]
    torch.testing.assert_close(peak, torch.tensor([2.5, 6, 10.5, 16.5, 25, 37.5]), atol=0.1, rtol=0)
    for low, high, row in zip(BAND_EDGES, BAND_EDGES[1:], weight, strict=False):
        edges = [int((frequency - edge).abs().argmin()) for edge in (low, high)]
        torch.testing.assert_close(row[edges] / row.max(), torch.full((2,), math.exp(-0.5)), atol=1e-3, rtol=0)


def test_covariances_are_those_of_plain_loops():
    x = np.random.default_rng(0).normal(size=(2, 3, 64))
    found = BandHead(3, 64, 2, 64.0).double().covariances(torch.tensor(x)).detach().numpy()
    taper = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(64) / 64)
    for window in range(2):
        spectrum = np.fft.rfft((x[window] - x[window].mean(1, keepdims=True)) * taper) / np.sqrt((taper**2).sum())
        for band, (low, high) in enumerate(itertools.pairwise(BAND_EDGES)):
            total, weights = np.zeros((3, 3)), 0.0
            for number in range(33):
                weight = math.exp(-(((number - (low + high) / 2) / ((high - low) / 2)) ** 2) / 2)
                total += weight * np.outer(spectrum[:, number], spectrum[:, number].conj()).real
                weights += weight
            covariance = total / weights
            expected = 0.95 * covariance + 0.05 * np.trace(covariance) / 3 * np.eye(3)
            np.testing.assert_allclose(found[window, band], expected, rtol=1e-5, atol=1e-6)


def test_white_noise_has_the_identity_as_covariance():
    x = torch.randn(400, 3, 256, generator=torch.Generator().manual_seed(0))
    mean = BandHead(3, 256, 2).covariances(x).detach().mean(0)
    torch.testing.assert_close(mean, torch.eye(3).expand(6, 3, 3), atol=0.1, rtol=0)


def test_the_gradient_of_the_bands():
    net = BandHead(3, 32, 2, 64.0).double().eval()
    nn.init.normal_(net.head.weight, generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 3, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    names = ("log_centre_K", "log_width_K", "shrinkage_K")

    def run(*values):
        return torch.func.functional_call(net, dict(zip(names, values, strict=True)), x)

    assert torch.autograd.gradcheck(run, tuple(getattr(net, name).detach().requires_grad_() for name in names))


# Training.


@pytest.mark.parametrize(("kind", "epochs", "rate"), [(BandHead, 40, 1e-3), (EegNet, 15, 3e-3)])
def test_alpha_power_is_learned_and_found_in_new_subjects(kind, epochs, rate):
    x, y, groups = alpha_windows(10)
    new_x, new_y, _ = alpha_windows(6, seed=1)
    fit = train_net(kind, x, y, groups, [new_x, new_x[:0]], outputs=2, seed=0, epochs=epochs, rate=rate, balanced=True)
    logits, none = fit.predictions
    assert logits.shape == (len(new_x), 2)
    assert logits.dtype == np.float32
    assert none.shape == (0, 2)
    assert roc_auc_score(new_y, logits[:, 1] - logits[:, 0]) > 0.9
    assert len(fit.held_out) == 2
    assert fit.epochs == np.argmin(fit.held_out_losses) + 1
    assert min(fit.held_out_losses) < math.log(2)


def test_targets_are_predicted_in_their_unit():
    draw = np.random.default_rng(0)
    source = draw.normal(size=(400, 3))
    x = (source[:, :, None] + 0.1 * draw.normal(size=(400, 3, 8))).astype(np.float32)
    y = 1000 + 50 * source[:, :2] @ np.array([[1, 0], [0, 1e-3]])  # two units
    groups = np.arange(400) // 20
    fit = train_net(Linear, x[:300], y[:300], groups[:300], [x[300:]], outputs=2, seed=0, rate=3e-2)
    error = fit.predictions[0] - y[300:]
    assert (error.std(0) < 0.2 * y.std(0)).all()
    assert (abs(error.mean(0)) < 0.1 * y.std(0)).all()


def fine_bins(subjects=6, each=20, channels=2, seed=0):
    """Return covariances in bins of 1 Hz, labels and subjects; class 1 has more power at 23 Hz, and there alone."""
    draw = np.random.default_rng(seed)
    label = np.tile(np.arange(each) % 2, subjects)
    x = draw.normal(size=(subjects * each, 45, channels, 6)).astype(np.float32)
    x[:, 22] *= (1 + 2 * label)[:, None, None]
    return upper(torch.from_numpy(x @ x.swapaxes(-1, -2) / 6)).numpy(), label, np.repeat(np.arange(subjects), each)


def test_learned_bands_move_to_where_classes_differ():
    x, y, _ = fine_bins()
    share = [
        bands.band_weights()[:, 22].max()
        for bands in (learned_bands(), learn_bands(x, y, np.arange(len(x)), outputs=2))
    ]
    assert share[1] > 1.5 * share[0]


def test_bands_learn_from_the_given_windows_alone_and_repeat_bitwise():
    x, y, groups = fine_bins()
    rows, other = np.flatnonzero(groups < 4), groups >= 4
    torch.manual_seed(7)
    before, found = torch.get_rng_state(), []
    for _ in range(2):
        bands = learn_bands(x, y, rows, outputs=2, balanced=True)
        found.append(torch.cat([part.detach() for part in bands.numbers()]))
        x[other], y[other] = 5.0, 0
    assert torch.equal(*found)
    assert torch.equal(before, torch.get_rng_state())
    target = np.stack([y, 2 * y], 1).astype(np.float32)
    values = [learn_bands(x, target, rows, outputs=2).log_centre_K]
    target[other] = 100.0
    values.append(learn_bands(x, target, rows, outputs=2).log_centre_K)
    assert torch.equal(*values)


def test_bands_refuse_what_is_not_a_number():
    x, y, _ = fine_bins()
    with pytest.raises(TrainingError, match="look for extreme values"):
        learn_bands(x * np.float32(np.nan), y, np.arange(len(x)), outputs=2)


def test_norms_are_limited_after_training():
    kept = []
    x, y, groups = alpha_windows(3)

    def make(*sizes):
        kept.append(EegNet(*sizes))
        return kept[-1]

    train_net(make, x, y, groups, [], outputs=2, seed=0, epochs=3, rate=0.1)
    (net,) = kept  # fewer than five subjects: nothing is held out
    spatial, head = net.spatial.weight.flatten(1).norm(dim=1), net.head.weight.norm(dim=1)
    assert spatial.max() <= 1 + 1e-5
    assert head.max() <= 0.25 + 1e-5
    assert max(spatial.max() - 1, head.max() - 0.25) > -1e-4  # a limit was reached, so it was needed


@pytest.mark.parametrize("kind", KINDS)
def test_equal_seeds_give_equal_bits_and_leave_the_generators_alone(kind):
    x, y, groups = alpha_windows(5, each=8, samples=64)
    found = []
    for before, seed in ((1, 7), (2, 7), (2, 8)):
        torch.manual_seed(before)
        np.random.seed(before)
        torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
        found.append(train_net(kind, x, y, groups, [x], outputs=2, seed=seed, epochs=3))
        assert torch.equal(torch.get_rng_state(), torch_state)
        assert np.array_equal(np.random.get_state()[1], numpy_state)
    one, same, other = found
    assert np.array_equal(one.predictions[0], same.predictions[0])
    assert (one.epochs, one.held_out, one.held_out_losses) == (same.epochs, same.held_out, same.held_out_losses)
    assert not np.array_equal(one.predictions[0], other.predictions[0])


def test_the_generator_is_left_alone_when_training_fails():
    x, y, groups = alpha_windows(2, each=4, samples=64)
    state = torch.get_rng_state()
    with pytest.raises(TrainingError):
        train_net(broken, x, y, groups, [], outputs=2, seed=0)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("subjects", [1, 4, 5, 7, 8, 23])
def test_no_subject_is_on_both_sides(subjects):
    draw = np.random.default_rng(subjects)
    groups = draw.permutation(np.repeat([f"s{number}" for number in range(subjects)], 7))
    sides = set()
    for seed in range(20):
        held = hold_out_fifth(groups, draw.normal(size=len(groups)), seed)
        apart = set(groups[held])
        assert apart.isdisjoint(groups[~held])
        assert len(apart) == (round(subjects / 5) if subjects >= 5 else 0)
        sides.add(frozenset(apart))
    assert (len(sides) > 1) == (subjects >= 5)


def test_both_sides_have_patients():
    groups = np.repeat(np.arange(20), 3)
    for seed in range(20):
        patient = np.isin(groups, np.random.default_rng(seed).choice(20, 10, replace=False))
        held = hold_out_fifth(groups, patient.astype(float), seed)
        assert patient[held].mean() == 0.5


def test_the_subject_cannot_be_learned_from_held_out_subjects():
    """The label is the subject. If windows were split instead of subjects, it would be learned; see the second part."""
    x, label, groups = signatures(10)
    fit = train_net(Linear, x, label, groups, [x], outputs=10, seed=0, rate=3e-2)
    assert len(fit.held_out) == 2
    assert fit.epochs == 1
    assert fit.held_out_losses[-1] > fit.held_out_losses[0] > math.log(10)
    # The fault: groups that mean nothing put windows of each subject on both sides.
    fault = train_net(Linear, x, label, np.arange(len(x)), [x], outputs=10, seed=0, rate=3e-2)
    assert fault.held_out_losses[-1] < 0.1
    assert (fault.predictions[0].argmax(1) == label).mean() > 0.99


def test_few_subjects_are_trained_on_for_all_epochs():
    x, label, groups = signatures(4)
    fit = train_net(Linear, x, label, groups, [x], outputs=4, seed=0, epochs=6)
    assert (fit.epochs, fit.held_out, fit.held_out_losses) == (6, (), ())


def test_balanced_classes_count_equally():
    """With nothing to learn, the logits are those of the frequencies; balanced, both classes are as likely."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(400, 2, 8)).astype(np.float32), (np.arange(400) % 10 == 0).astype(int)
    gap = {}
    for balanced in (False, True):
        fit = train_net(Linear, x, y, np.zeros(400), [x], outputs=2, seed=0, balanced=balanced, rate=3e-2)
        gap[balanced] = (fit.predictions[0][:, 1] - fit.predictions[0][:, 0]).mean()
    assert gap[False] == pytest.approx(math.log(1 / 9), abs=0.2)
    assert gap[True] == pytest.approx(0, abs=0.2)


@pytest.mark.parametrize("windows", [64, 65, 129])
def test_no_batch_has_a_single_window(windows):
    sizes = []

    class Counting(Linear):
        def forward(self, x):
            if self.training:
                sizes.append(len(x))
            return super().forward(x)

    x = np.zeros((windows, 2, 8), np.float32)
    train_net(Counting, x, np.arange(windows) % 2, np.zeros(windows), [], outputs=2, seed=0, epochs=1)
    assert sum(sizes) == windows
    assert 1 < min(sizes) <= max(sizes) <= 64


def test_the_array_may_be_a_read_only_map(tmp_path):
    x, y, groups = signatures(5)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    found = train_net(Linear, mapped, y, groups, [mapped], outputs=5, seed=0, epochs=2).predictions[0]
    assert np.array_equal(found, train_net(Linear, x, y, groups, [x], outputs=5, seed=0, epochs=2).predictions[0])


def test_progress_is_said_every_ten_seconds_at_most(monkeypatch):
    clock, lines = [0.0], []

    def tick():
        clock[0] += 1.0
        return clock[0]

    monkeypatch.setattr(small_nets.time, "monotonic", tick)
    x, y, groups = signatures(4)
    train_net(Linear, x, y, groups, [], outputs=4, seed=0, epochs=40, say=lines.append)
    assert 3 <= len(lines) <= 4  # 40 steps of a second each
    for line in lines:
        assert re.fullmatch(r"Linear, all subjects: epoch \d+ of at most 40, loss [\d.e+-]+", line)


def broken(*sizes):
    """A network whose output is not a number."""
    net = Linear(*sizes)
    nn.init.constant_(net.head.weight, math.nan)
    return net


def broken_bands(*sizes):
    """A network whose covariances are not numbers, for which torch's eigenvalues fail."""
    net = BandHead(*sizes)
    nn.init.constant_(net.log_centre_K, math.nan)
    return net


@pytest.mark.parametrize("make", [broken, broken_bands])
def test_a_loss_that_is_not_a_number_is_one_clear_line(make):
    x, y, groups = alpha_windows(2, each=4, samples=64)
    with pytest.raises(TrainingError, match="of the small network is n") as caught:
        train_net(make, x, y, groups, [], outputs=2, seed=0)
    assert isinstance(caught.value, CerebroError)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_trained_with_is_refused():
    x, y, groups = alpha_windows(2, each=4, samples=64)
    bad = x.copy()
    bad[0, 0, 0], bad[1, 0, 0] = np.inf, -np.inf

    def refused(match, kind=InputError, **other):
        given = {"train_x": x, "train_y": y, "groups": groups, "predict_x": [x], "outputs": 2, "seed": 0, **other}
        with pytest.raises(kind, match=match):
            train_net(Linear, **given)

    refused("NaN or infinity", train_x=bad)
    refused("NaN or infinity", predict_x=[bad])
    refused("the targets contain NaN", train_y=np.full((8, 2), np.nan))
    refused("float64", train_x=x.astype(float))
    refused(r"expected float32 \(n, 4, 64\)", predict_x=[x[:, :3]])
    refused("integers from 0 to 1", train_y=y + 1)
    refused("integers from 0 to 1", train_y=y.astype(float))
    refused(r"expected \(8, 2\)", train_y=np.zeros((8, 3)))
    refused("8 windows, 8 labels and 7 subjects", groups=groups[1:])
    refused("n >= 2", train_x=x[:1], train_y=y[:1], groups=groups[:1])
    refused("epochs=0", ConfigError, epochs=0)
