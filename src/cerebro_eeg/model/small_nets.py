"""Two small networks that learn from labelled windows alone, and their training: rivals of the foundation model.

Both read windows of one fixed montage, in microvolts divided by the scale of the recording. Training chooses the number
of epochs on subjects that it does not train on, and then starts anew with all subjects.

Legend: **B** windows, **C** channels, **T** samples, **M** filters, **K** bands, **F** frequency bins, **G** real and
imaginary parts of the bins, **S** subjects, **O** outputs.
"""

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from cerebro_eeg.batch import onto
from cerebro_eeg.errors import ConfigError, InputError, TrainingError
from cerebro_eeg.model.bands import LearnedBands, learned_bands, log_triangle, shrunk, symmetric

BAND_EDGES = (1.0, 4.0, 8.0, 13.0, 20.0, 30.0, 45.0)
"""The edges, in Hz, of the six bands that a :class:`BandHead` starts with."""

_POOLED_RATE = 32.0  # Hz after the first pooling of EEGNet: the paper's 128 Hz divided by 4
_LEAST_SUBJECTS = 5  # with fewer there is no fifth of them to hold out
_PATIENCE = 10  # epochs without a lower held-out loss until the choice of epochs ends
_PREDICTED_AT_ONCE = 256
_BAND_STEPS, _BAND_BATCH = 300, 64  # of learn_bands
_SECONDS = 10.0  # between two lines of progress


class EegNet(nn.Module):
    """EEGNet-8,2: filters in time, then over channels, then in time again, and a linear head.

    It follows the table of Lawhern et al. (2018, J. Neural Eng. 15, 056013), which is for 128 Hz. Kernels keep their
    duration at other rates: half a second. The first pooling leads to about 32 Hz, the second one takes 8 of these.
    A window that is shorter than a pooling is pooled as a whole. Only the head has a bias.
    """

    def __init__(self, channels: int, samples: int, outputs: int, sfreq: float = 256.0) -> None:
        super().__init__()
        _check_sizes(channels, samples, outputs, sfreq)
        self.channels, self.samples, self.outputs = channels, samples, outputs
        filters, depth = 8, 2
        pool = min(samples, max(1, round(sfreq / _POOLED_RATE)))
        last_pool = min(8, samples // pool)
        kernel, last_kernel = max(1, round(sfreq / 2)), max(1, round(sfreq / pool / 2))
        wide = filters * depth
        self.pad = _same(kernel)
        self.temporal = nn.Conv2d(1, filters, (1, kernel), bias=False)
        self.temporal_norm = nn.BatchNorm2d(filters)
        self.spatial = nn.Conv2d(filters, wide, (channels, 1), groups=filters, bias=False)
        self.spatial_norm = nn.BatchNorm2d(wide)
        self.pool = nn.AvgPool2d((1, pool))
        self.last_pad = _same(last_kernel)
        self.depthwise = nn.Conv2d(wide, wide, (1, last_kernel), groups=wide, bias=False)
        self.pointwise = nn.Conv2d(wide, wide, 1, bias=False)
        self.last_norm = nn.BatchNorm2d(wide)
        self.last_pool = nn.AvgPool2d((1, last_pool))
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(wide * (samples // pool // last_pool), outputs)
        self.limit_norms()

    def forward(self, x_BCT: Tensor) -> Tensor:
        """Return logits or values (B, O)."""
        _check_windows(x_BCT, self.channels, self.samples)
        x_BMCT = self.temporal_norm(self.temporal(self.pad(x_BCT.unsqueeze(1))))
        x_BM1T = self.dropout(self.pool(F.elu(self.spatial_norm(self.spatial(x_BMCT)))))
        x_BM1T = self.last_norm(self.pointwise(self.depthwise(self.last_pad(x_BM1T))))
        return self.head(self.dropout(self.last_pool(F.elu(x_BM1T))).flatten(1))

    @torch.no_grad()
    def limit_norms(self) -> None:
        """Shorten each spatial filter to a norm of 1 and each row of the head to 0.25; call it after every step."""
        for weight, most in ((self.spatial.weight, 1.0), (self.head.weight, 0.25)):
            weight.copy_(weight.renorm(2, 0, most))


class BandHead(LearnedBands):
    """A linear head on the logarithms of channel covariances in six learned frequency bands.

    A band weighs the bins of the spectrum by a Gaussian with a learned centre and width. Its covariance is shrunk by
    a learned share towards a multiple of the identity. The linear layer starts at zero, so the first outputs are zero.
    """

    taper_T: Tensor

    def __init__(self, channels: int, samples: int, outputs: int, sfreq: float = 256.0) -> None:
        _check_sizes(channels, samples, outputs, sfreq)
        super().__init__(BAND_EDGES, torch.fft.rfftfreq(samples, 1 / sfreq))
        self.channels, self.samples, self.outputs = channels, samples, outputs
        taper_T = torch.hann_window(samples)
        # White noise of variance 1 has a power of 1 in every bin of this taper.
        self.register_buffer("taper_T", taper_T / taper_T.square().sum().sqrt(), persistent=False)
        features = (len(BAND_EDGES) - 1) * channels * (channels + 1) // 2
        self.norm = nn.BatchNorm1d(features, affine=False)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(features, outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x_BCT: Tensor) -> Tensor:
        """Return logits or values (B, O)."""
        return self.head(self.dropout(self.norm(log_triangle(self.covariances(x_BCT)))))

    def covariances(self, x_BCT: Tensor) -> Tensor:
        """Return the shrunk covariances (B, K, C, C) of the windows in the bands."""
        _check_windows(x_BCT, self.channels, self.samples)
        spectrum_BCF = torch.fft.rfft((x_BCT - x_BCT.mean(-1, keepdim=True)) * self.taper_T)
        parts_B1CG = torch.cat((spectrum_BCF.real, spectrum_BCF.imag), -1).unsqueeze(1)
        weight_K1G = self.band_weights().repeat(1, 2).unsqueeze(1)
        return shrunk((parts_B1CG * weight_K1G) @ parts_B1CG.mT, self.shares())


class _BandLearner(nn.Module):
    """Learned bands with the head of a :class:`BandHead`, on the triangles of covariances in bins of 1 Hz."""

    def __init__(self, bins: int, pairs: int, outputs: int, sfreq: float) -> None:
        super().__init__()
        self.bands = learned_bands()
        last = nn.Linear(len(self.bands.log_centre_K) * pairs, outputs)
        self.head = nn.Sequential(nn.BatchNorm1d(last.in_features, affine=False), nn.Dropout(0.5), last)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, cross_BFP: Tensor) -> Tensor:
        """Return logits or values (B, O)."""
        return self.head(self.bands.log_covariances(symmetric(cross_BFP)))


@dataclass(frozen=True)
class NetFit:
    """What a small network predicts, and how many epochs it was trained for."""

    predictions: tuple[NDArray[np.float32], ...]
    """Logits, or values in the unit of the targets, (n, O) for each array that was to be predicted."""
    epochs: int
    """The epochs of the last training, on all subjects."""
    held_out: tuple[str, ...]
    """The subjects on which the number of epochs was chosen; none if there were too few subjects."""
    held_out_losses: tuple[float, ...]
    """The loss on these subjects after each epoch of the first training, which did not see them."""


def train_net(
    make: Callable[[int, int, int, float], nn.Module],
    train_x: NDArray[np.float32],
    train_y: NDArray[np.int64] | NDArray[np.floating],
    groups: NDArray[Any],
    predict_x: Sequence[NDArray[np.float32]],
    *,
    outputs: int,
    seed: int,
    sfreq: float = 256.0,
    epochs: int = 40,
    balanced: bool = False,
    batch: int = 64,
    rate: float = 1e-3,
    decay: float = 1e-2,
    device: str | torch.device = "cpu",
    say: Callable[[str], None] | None = None,
) -> NetFit:
    """Train a network from scratch, and predict windows with it.

    ``make`` is :class:`EegNet`, :class:`BandHead` or a function of (channels, samples, outputs, sfreq). Windows are
    (n, C, T); ``train_y`` holds classes (n,) as integers, or targets (n, outputs), which are standardised here.
    ``groups`` names the subject of each window. A fifth of the subjects chooses the number of epochs, at most
    ``epochs``, by its loss. Then the network is trained anew on all subjects, by the same schedule, and stops there.
    With fewer than five subjects, it is trained for ``epochs`` epochs.

    ``balanced`` weighs classes by the inverse of their frequency. On a CPU, equal seeds give equal bits. The global
    generators of random numbers are as before afterwards.
    """
    device = torch.device(device)
    _check_training(train_x, train_y, groups, predict_x, outputs, epochs, batch)
    goal = _classes(train_y, outputs, balanced) if train_y.ndim == 1 else _targets(train_y)
    held_N = hold_out_fifth(groups, goal.y.double().reshape(len(train_x), -1).mean(1).numpy(), seed)
    plan = _Plan(make, train_x, goal.onto(device), outputs, seed, sfreq, epochs, batch, rate, decay, device, _Talk(say))
    gpu = [torch.cuda.current_device() if device.index is None else device.index] if device.type == "cuda" else []
    with torch.random.fork_rng(gpu), _refusing_nan():
        losses = _rehearse(plan, held_N) if held_N.any() else []
        best = int(np.argmin(losses)) + 1 if losses else epochs
        *_, net = itertools.islice(_train(plan, np.arange(len(train_x)), "all subjects", best), best)
        predictions = tuple((_outputs(plan, net, x) * goal.unit_O + goal.zero_O).numpy() for x in predict_x)
    held_out = tuple(str(subject) for subject in np.unique(groups[held_N]))
    return NetFit(predictions, best, held_out, tuple(losses))


def learn_bands(
    cross_NFP: NDArray[np.float32],
    y: NDArray[np.int64] | NDArray[np.floating],
    row_N: NDArray[np.intp],
    *,
    outputs: int,
    seed: int = 0,
    balanced: bool = False,
) -> LearnedBands:
    """Return frequency bands that were learned, together with a linear head, on the windows ``row_N``.

    ``cross_NFP`` are triangles of the covariances of all windows in bins of 1 Hz, and ``y`` the classes or targets. The
    head is left aside, because one that is fitted exactly afterwards does better on new subjects. Training takes about
    300 steps, however many windows there are, on one thread of the CPU: equal seeds give equal bits.
    """
    goal = _classes(y, outputs, balanced, row_N) if y.ndim == 1 else _targets(y, row_N)
    epochs = max(1, round(_BAND_STEPS * _BAND_BATCH / len(row_N)))
    plan = _Plan(
        _BandLearner,
        cross_NFP,
        goal,
        outputs,
        seed,
        sfreq=0.0,  # the bins of 1 Hz are those of any rate
        epochs=epochs,
        batch=_BAND_BATCH,
        rate=1e-3,
        decay=1e-2,
        device=torch.device("cpu"),
        talk=_Talk(None),
        haste=30.0,
    )
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]), _refusing_nan(), contextlib.ExitStack() as stack:
        stack.callback(torch.set_num_threads, threads)
        torch.set_num_threads(1)  # more would mostly wait for each other: the matrices are small
        *_, net = _train(plan, row_N, "bands", epochs)
    assert isinstance(net, _BandLearner)
    return net.bands.requires_grad_(False)


@contextlib.contextmanager
def _refusing_nan() -> Iterator[None]:
    """Raise an error of ours where torch finds no eigenvalues."""
    try:
        yield
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise TrainingError(
            "a covariance of the small network is not a number; look for extreme values in the windows"
        ) from error


def hold_out_fifth(groups: NDArray[Any], order: NDArray[np.float64], seed: int) -> NDArray[np.bool_]:
    """Return True for the windows of one fifth of the subjects, and False everywhere for fewer than five subjects.

    All windows of a subject are on one side. Subjects are sorted by the mean of ``order`` over their windows, such as
    the label, and one of every five neighbours is drawn. So both sides contain patients where label means patient.
    """
    subjects, subject_N = np.unique(groups, return_inverse=True)
    if len(subjects) < _LEAST_SUBJECTS:
        return np.zeros(len(groups), np.bool_)
    draw = np.random.default_rng(seed)
    mean_S = np.bincount(subject_N, order) / np.bincount(subject_N)
    shuffled_S = draw.permutation(len(subjects))  # those with equal means are neighbours by chance, not by name
    ranked_S = shuffled_S[np.argsort(mean_S[shuffled_S], kind="stable")]
    return np.isin(subject_N, [draw.choice(part) for part in np.array_split(ranked_S, round(len(subjects) / 5))])


@dataclass(frozen=True)
class _Goal:
    """What is learned: classes with weights, or standardised targets with their unit and zero."""

    y: Tensor
    weight_O: Tensor | None
    unit_O: Tensor
    zero_O: Tensor

    def onto(self, device: torch.device) -> "_Goal":
        """Return the goal for a device; unit and zero stay, because predictions get them on the CPU."""
        weight_O = None if self.weight_O is None else onto(self.weight_O, device)
        return _Goal(onto(self.y, device), weight_O, self.unit_O, self.zero_O)

    def loss(self, output_BO: Tensor, row_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the losses of these windows and the sum of their weights, which divides it."""
        y = self.y[row_B]
        if self.weight_O is None:
            return F.mse_loss(output_BO, y, reduction="sum"), torch.tensor(float(y.numel()), device=y.device)
        return F.cross_entropy(output_BO, y, self.weight_O, reduction="sum"), self.weight_O[y].sum()


def _classes(label_N: NDArray[Any], outputs: int, balanced: bool, row_N: NDArray[np.intp] | None = None) -> _Goal:
    """Return the goal for classes, whose weights are counted over some windows or all.

    A class without windows gets no weight, because none of its windows is asked for.
    """
    y_N = torch.tensor(label_N, dtype=torch.int64)
    counted = y_N if row_N is None else y_N[row_N]
    count_O = torch.bincount(counted, minlength=outputs)
    weight_O = torch.where(count_O > 0, len(counted) / (outputs * count_O.clamp_min(1)), 0.0) if balanced else None
    return _Goal(y_N, torch.ones(outputs) if weight_O is None else weight_O, torch.ones(1), torch.zeros(1))


def _targets(target_NO: NDArray[Any], row_N: NDArray[np.intp] | None = None) -> _Goal:
    """Return the goal for targets, each with the mean 0 and the deviation 1 over some windows or all.

    A constant target keeps its unit.
    """
    counted = target_NO if row_N is None else target_NO[row_N]
    mean_O, deviation_O = counted.mean(0, dtype=np.float64), counted.std(0, dtype=np.float64)
    deviation_O = np.where(deviation_O > 0, deviation_O, 1)
    y_NO = torch.tensor((target_NO - mean_O) / deviation_O, dtype=torch.float32)
    return _Goal(y_NO, None, *(torch.tensor(part, dtype=torch.float32) for part in (deviation_O, mean_O)))


class _Talk:
    """Says a line of progress every ten seconds at most."""

    def __init__(self, say: Callable[[str], None] | None) -> None:
        self._say, self._last = say, time.monotonic()

    def __call__(self, line: str) -> None:
        if self._say is not None and time.monotonic() - self._last >= _SECONDS:
            self._last = time.monotonic()
            self._say(line)


@dataclass(frozen=True)
class _Plan:
    """All that two trainings of one network have in common."""

    make: Callable[[int, int, int, float], nn.Module]
    x_NCT: NDArray[np.float32]
    goal: _Goal
    outputs: int
    seed: int
    sfreq: float
    epochs: int
    batch: int
    rate: float
    decay: float
    device: torch.device
    talk: _Talk
    haste: float = 1.0
    """How much faster learned bands learn than the other weights."""

    def windows(self, x_NCT: NDArray[np.float32], row_B: NDArray[np.int64]) -> Tensor:
        """Copy these windows to the device. The array itself may be a read-only map of a file."""
        return onto(torch.from_numpy(x_NCT[row_B]), self.device)


def _rehearse(plan: _Plan, held_N: NDArray[np.bool_]) -> list[float]:
    """Train without the held-out subjects, and return their loss after each epoch until it has stopped falling."""
    losses: list[float] = []
    for net in _train(plan, np.flatnonzero(~held_N), "without a fifth of the subjects", plan.epochs):
        losses.append(_held_out_loss(plan, net, np.flatnonzero(held_N)))
        if len(losses) - 1 - int(np.argmin(losses)) >= _PATIENCE:
            break
    return losses


def _train(plan: _Plan, row_N: NDArray[np.int64], what: str, last: int) -> Iterator[nn.Module]:
    """Train a new network on these windows, and yield it after every epoch; ``last`` is for the lines of progress.

    The schedule depends on ``plan.epochs``, not on the epoch at which the caller stops.
    """
    torch.default_generator.manual_seed(plan.seed)  # torch.manual_seed would also seed devices that are not in use
    if plan.device.type == "cuda":
        with torch.cuda.device(plan.device):
            torch.cuda.manual_seed(plan.seed)
    order = torch.Generator().manual_seed(plan.seed)
    _, channels, samples = plan.x_NCT.shape
    net = plan.make(channels, samples, plan.outputs, plan.sfreq).to(plan.device)
    parts = math.ceil(len(row_N) / plan.batch)
    optimiser = torch.optim.AdamW(_decayed(net, plan.decay, plan.haste), plan.rate)
    for epoch in range(plan.epochs):
        net.train()
        # Parts of nearly equal size: a last part of one window would have no variance to normalise by.
        for part, chosen_B in enumerate(torch.randperm(len(row_N), generator=order).tensor_split(parts)):
            progress = (epoch + part / parts) / plan.epochs
            for group in optimiser.param_groups:
                group["lr"] = plan.rate * group["haste"] * (1 + math.cos(math.pi * progress)) / 2
            row_B = row_N[chosen_B.numpy()]
            total, weight = plan.goal.loss(net(plan.windows(plan.x_NCT, row_B)), torch.from_numpy(row_B))
            loss = total / weight
            value = _finite(loss.item(), f"epoch {epoch + 1}, batch {part + 1}")
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if isinstance(net, EegNet):
                net.limit_norms()
            plan.talk(f"{type(net).__name__}, {what}: epoch {epoch + 1} of at most {last}, loss {value:.3g}")
        yield net


def _decayed(net: nn.Module, decay: float, haste: float) -> list[dict[str, Any]]:
    """Return the groups of AdamW: only matrices and kernels decay, not biases, norms, or bands, which learn faster."""
    bands = [part for module in net.modules() if isinstance(module, LearnedBands) for part in module.numbers()]
    others = [part for part in net.parameters() if not any(part is one for one in bands)]
    groups = (
        ([part for part in others if part.ndim > 1], decay, 1.0),
        ([part for part in others if part.ndim <= 1], 0.0, 1.0),
        (bands, 0.0, haste),
    )
    return [{"params": parts, "weight_decay": of, "haste": faster} for parts, of, faster in groups if parts]


def _held_out_loss(plan: _Plan, net: nn.Module, row_N: NDArray[np.int64]) -> float:
    """Return the mean loss of these windows, weighted as in training."""
    output_NO = _outputs(plan, net, plan.x_NCT, row_N)
    total, weight = plan.goal.loss(onto(output_NO, plan.device), torch.from_numpy(row_N))
    return _finite((total / weight).item(), "the held-out subjects")


@torch.no_grad()
def _outputs(plan: _Plan, net: nn.Module, x_NCT: NDArray[np.float32], row_N: NDArray[np.int64] | None = None) -> Tensor:
    """Return what the network says of these windows, or of all, on the CPU."""
    net.eval()
    row_N = np.arange(len(x_NCT)) if row_N is None else row_N
    output_NO = torch.empty(len(row_N), plan.outputs)
    for begin in range(0, len(row_N), _PREDICTED_AT_ONCE):
        row_B = row_N[begin : begin + _PREDICTED_AT_ONCE]
        output_NO[begin : begin + len(row_B)] = net(plan.windows(x_NCT, row_B))
    return output_NO


def _finite(loss: float, where: str) -> float:
    """Return the loss, or raise if it is not a number."""
    if not math.isfinite(loss):
        raise TrainingError(
            f"the loss of the small network is {loss} ({where}); look for extreme values in the windows or the targets"
        )
    return loss


def _same(kernel: int) -> nn.Module:
    """Return the padding that keeps the length; torch's own "same" warns for even kernels."""
    return nn.ZeroPad2d(((kernel - 1) // 2, kernel // 2, 0, 0))


def _check_sizes(channels: int, samples: int, outputs: int, sfreq: float) -> None:
    """Refuse sizes that no network can have."""
    if channels < 1 or samples < 2 or outputs < 1 or not (math.isfinite(sfreq) and sfreq > 0):
        raise ConfigError(
            f"{channels} channels, {samples} samples, {outputs} outputs and {sfreq} Hz were given; "
            "a small network needs at least 1, 2, 1 and a rate above 0"
        )


def _check_windows(x_BCT: Tensor, channels: int, samples: int) -> None:
    """Refuse windows of another shape than the network was made for."""
    if x_BCT.ndim != 3 or x_BCT.shape[1:] != (channels, samples):
        raise InputError(f"windows have the shape {tuple(x_BCT.shape)}; expected (windows, {channels}, {samples})")


def _check_training(
    train_x: NDArray[Any],
    train_y: NDArray[Any],
    groups: NDArray[Any],
    predict_x: Sequence[NDArray[Any]],
    outputs: int,
    epochs: int,
    batch: int,
) -> None:
    """Refuse windows, labels, targets and settings that cannot be trained with."""
    if epochs < 1 or batch < 2:
        raise ConfigError(f"epochs={epochs} and batch={batch} were given; expected at least 1 and 2")
    if train_x.ndim != 3 or len(train_x) < 2:
        raise InputError(f"the windows have the shape {train_x.shape}; expected (n, channels, samples) with n >= 2")
    if not len(train_x) == len(train_y) == len(groups):
        raise InputError(
            f"{len(train_x)} windows, {len(train_y)} labels and {len(groups)} subjects were given; "
            "expected one label and one subject per window"
        )
    for x in (train_x, *predict_x):
        if x.dtype != np.float32 or x.shape[1:] != train_x.shape[1:]:
            expected = f"float32 (n, {train_x.shape[1]}, {train_x.shape[2]})"
            raise InputError(f"an array of windows is {x.dtype} {x.shape}; expected {expected}")
        if not _all_finite(x):
            raise InputError("the windows contain NaN or infinity; leave out such windows")
    if train_y.ndim == 1:
        if train_y.dtype.kind not in "iu" or train_y.min() < 0 or train_y.max() >= outputs:
            raise InputError(f"labels of {train_y.dtype} were given; expected integers from 0 to {outputs - 1}")
    elif train_y.shape[1:] != (outputs,):
        raise InputError(f"targets have the shape {train_y.shape}; expected ({len(train_x)}, {outputs})")
    elif not _all_finite(train_y):
        raise InputError("the targets contain NaN or infinity; leave out such windows")


def _all_finite(values: NDArray[Any]) -> bool:
    """Return whether there is no NaN or infinity, without a mask as large as the windows."""
    with np.errstate(invalid="ignore"):
        return bool(np.isfinite(values.sum(dtype=np.float64)))
