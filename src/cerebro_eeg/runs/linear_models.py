"""Linear models on the features of windows, chosen by cross-validation over subjects.

A read-out has many more features than there are labelled subjects. What it may read, how strongly it is regularised and
whether features are centred per subject is therefore chosen on subjects that a model was not fitted on: in turns, one
fifth of the subjects is held out. The chosen model is then fitted on all of them. Our heads and their simple rivals are
chosen by these same lines.

Two models can be stacked: their outputs are added with a weight that is chosen in the same way. The sum of two linear
models is one linear model on the features of both. A stack may be a part of another.

Some features are learned with labels, such as frequency bands. For each fold they are learned anew, without the
subjects that it holds out.

The regularised solution depends on features only through their products. So it does not change if wide features are
turned onto their principal axes, and the fit is much faster there.

Legend: **B** windows, **P** features, **Q** principal axes, **K** outputs.
"""

import copy
import functools
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.config import ReadoutPart
from cerebro_eeg.data.batching.windows import Windows

STRENGTHS = (0.1, 0.5, 2.5, 12.5, 62.5)
"""Inverse regularisations to choose from, for features whose variances sum to 1."""
DEFAULT_STRENGTH = 2.5
"""Inverse regularisation where too few subjects are there to choose one."""
FOLDS = 5
AXES = 512
"""Most principal axes; what lies beyond them is mostly noise."""
LEAST_GROUPS = 3
"""With fewer subjects nothing can be chosen by cross-validation."""

BLENDS = (0.15, 0.3, 0.5, 0.7)
"""Weights of the first of two stacked models to choose from; the second has the rest."""

Candidates = Mapping[str, tuple[ReadoutPart, ...]]
"""Names of models, and the parts that each of them reads."""
Stacks = Mapping[str, tuple[str, str]]
"""Names of stacked models, and the two models that each of them adds up: candidates, or stacks before it."""
Learner = Callable[[NDArray[np.intp]], NDArray[np.float32]]
"""Learns a part on the windows with these numbers, and returns its features for all windows."""


@dataclass(frozen=True)
class LabelledFeatures:
    """Features of windows, part after part, with the truth and the subject of each window."""

    raw_BP: NDArray[np.float32]
    sizes: Mapping[ReadoutPart, int]
    """Number of features of each part, in order."""
    label_B: NDArray[np.int64]
    target_BK: NDArray[np.float32] | None
    """Values, for a regression."""
    outputs: int
    group_B: NDArray[np.int64]
    """Number of the subject, or of the recording where the subject is not known."""
    learners: Mapping[ReadoutPart, Learner] = field(default_factory=dict)
    """Parts whose features are learned with labels; ``raw_BP`` has what all windows have taught."""

    def columns(self, parts: Sequence[ReadoutPart]) -> NDArray[np.intp]:
        """Return the places of the features of some parts, in the order of the parts."""
        ends = dict(zip(self.sizes, np.cumsum(list(self.sizes.values())), strict=True))
        return np.concatenate([np.arange(ends[part] - self.sizes[part], ends[part]) for part in parts])

    def features(self, parts: Sequence[ReadoutPart], fitted: NDArray[np.intp] | None = None) -> NDArray[np.float32]:
        """Return the features of some parts, learned on some windows or all."""
        if fitted is None:
            return self.raw_BP[:, self.columns(parts)]
        found = [self.learners[part](fitted) if part in self.learners else self.features([part]) for part in parts]
        return np.concatenate(found, 1)


@dataclass(frozen=True)
class Tried:
    """The best cross-validated score of a model, with and without centring."""

    name: str
    centred: bool
    strength: float | None
    """Inverse regularisation; None for stacked models, which keep those of their parts."""
    score: float
    blend: float | None = None
    """Weight of the first of two stacked models."""


@dataclass(frozen=True)
class LinearModel:
    """A linear model on standardised features, and how it was chosen."""

    name: str
    parts: tuple[ReadoutPart, ...]
    centred: bool
    """Whether the mean over a subject's windows is subtracted from features, which is done on outputs as well."""
    strength: float | None
    shift_P: NDArray[np.float64]
    scale_P: NDArray[np.float64]
    weight_KP: NDArray[np.float64]
    bias_K: NDArray[np.float64]
    metric: str
    """What was compared: AUROC (mean over classes against the rest) or R2."""
    subjects: int
    """Subjects (or recordings) of the cross-validation; 0 if there was none."""
    tried: tuple[Tried, ...]
    held_out: Mapping[str, NDArray[np.float32]]
    """Outputs (B, K) of each candidate for every window, by models that had not seen its subject."""

    @property
    def own_held_out(self) -> NDArray[np.float32] | None:
        """Outputs for every window by models that had not seen its subject; None without cross-validation."""
        return self.held_out.get(self.name)

    @property
    def score(self) -> float | None:
        """The cross-validated score; None without cross-validation."""
        return max((one.score for one in self.tried if one.name == self.name), default=None)

    def outputs(self, raw_BP: NDArray[np.float32], group_B: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return outputs for raw features of its own parts; a centred model needs all windows of each group."""
        output_BK = ((raw_BP - self.shift_P) * self.scale_P) @ self.weight_KP.T + self.bias_K
        if self.centred:
            from cerebro_eeg.runs.decisions import centre

            return centre(output_BK.astype(np.float32), group_B, self.bias_K.astype(np.float32))
        return output_BK.astype(np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Return the choice as JSON values."""
        return {
            "name": self.name,
            "parts": list(self.parts),
            "centred": self.centred,
            "strength": self.strength,
            "score": self.score,
            "metric": self.metric,
            "subjects": self.subjects,
            "tried": [vars(one) for one in self.tried],
        }


def groups_of(windows: Windows) -> NDArray[np.int64]:
    """Return a number for the subject of each window; a recording without a known subject is its own."""
    known = windows.subject >= 0
    return np.where(known, windows.subject, len(windows.facts.subjects) + windows.recording).astype(np.int64)


def labelled(
    parts: Sequence[tuple[Windows, NDArray[np.float32]]], sizes: Mapping[ReadoutPart, int]
) -> LabelledFeatures:
    """Join the windows of several splits, in order, with their features."""
    first = parts[0][0]
    targets = None
    if first.target is not None:
        targets = np.concatenate([windows.target for windows, _ in parts if windows.target is not None])
    return LabelledFeatures(
        np.concatenate([raw for _, raw in parts]),
        sizes,
        np.concatenate([windows.label for windows, _ in parts]),
        targets,
        len(first.names),
        np.concatenate([groups_of(windows) for windows, _ in parts]),
    )


def varies_within(data: LabelledFeatures) -> bool:
    """Return whether the truth differs between windows of a subject. If not it is a trait, which centring removes."""
    for group in np.unique(data.group_B):
        inside = data.group_B == group
        truth = data.label_B[inside] if data.target_BK is None else data.target_BK[inside]
        if (truth != truth[0]).any():
            return True
    return False


def fit_chosen(
    data: LabelledFeatures,
    candidates: Candidates,
    stacks: Stacks = MappingProxyType({}),
    *,
    only: Sequence[str] = (),
    balanced: bool = False,
    centring: bool = True,
    repeats: int = 1,
    strengths: Sequence[float] = STRENGTHS,
) -> LinearModel:
    """Choose a model, its strength and whether to centre by cross-validation over subjects, and fit it on all windows.

    ``stacks`` name further models: the weighted sum of two others. With ``only``, one of these is chosen. Of
    equally good ones the first is taken. Below three subjects the last candidate is fitted with the usual strength, or
    with the only one of ``strengths``.
    """
    crossed = CrossValidation(
        data, candidates, stacks, balanced=balanced, centring=centring, repeats=repeats, strengths=strengths
    )
    return crossed.fitted(only)


@dataclass(frozen=True)
class HeldOut:
    """What cross-validation found of one model, with or without centring: its best setting and its answers with it."""

    tried: Tried
    output_RBK: NDArray[np.float32]
    """Outputs for every window by models that had not seen its subject, for each repetition of the division."""

    @property
    def averaged(self) -> NDArray[np.float32]:
        """The mean over the repetitions, (B, K)."""
        return self.output_RBK.mean(0)


class CrossValidation:
    """Cross-validated answers of several linear models on the same windows, and the same folds of subjects."""

    def __init__(
        self,
        data: LabelledFeatures,
        candidates: Candidates,
        stacks: Stacks = MappingProxyType({}),
        *,
        balanced: bool = False,
        centring: bool = True,
        repeats: int = 1,
        before: "CrossValidation | None" = None,
        tell: Callable[[str], None] = lambda name: None,
        strengths: Sequence[float] = STRENGTHS,
    ) -> None:
        """Try every strength of every candidate, and every weight of every stack; ``tell`` is called with each name.

        A setting's score is the mean over ``repeats`` divisions of the subjects. Candidates that ``before`` has are
        taken from there: its windows, settings and features of these candidates must be the same.
        """
        self.data, self.candidates, self.stacks, self.balanced = data, candidates, stacks, balanced
        self.subjects = len(np.unique(data.group_B))
        self.strengths = tuple(strengths)
        self.ways = (False, True) if centring and varies_within(data) else (False,)
        self._spaces: dict[str, _Space] = {}
        self._found: dict[tuple[str, bool], HeldOut] = {}
        if self.subjects < LEAST_GROUPS:
            return
        for name, parts in candidates.items():
            tell(name)
            if before is not None and name in before._spaces:
                self._spaces[name] = before._spaces[name]
                self._found |= {key: one for key, one in before._found.items() if key[0] == name}
                continue
            self._spaces[name] = _Space(data, parts)
            of_repeats = [
                _held_out(data, parts, self._spaces[name], self.ways, self.strengths, balanced, r)
                for r in range(repeats)
            ]
            for centred in self.ways:
                output_RSBK = np.stack([of_repeat[centred] for of_repeat in of_repeats])
                place, best = _best(data, output_RSBK)
                tried = Tried(name, centred, self.strengths[place], best)
                self._found[name, centred] = HeldOut(tried, output_RSBK[:, place])
        for name, (first, second) in stacks.items():
            for centred in self.ways:
                both = [self._found[part, centred].output_RBK for part in (first, second)]
                summed = np.stack([blend * both[0] + (1 - blend) * both[1] for blend in BLENDS], 1)
                place, best = _best(data, summed)
                self._found[name, centred] = HeldOut(Tried(name, centred, None, best, BLENDS[place]), summed[:, place])

    def keeping(self, names: Sequence[str]) -> "CrossValidation":
        """Return what was found of some candidates, to be taken over by another cross-validation."""
        kept = copy.copy(self)
        kept._spaces = {name: space for name, space in self._spaces.items() if name in names}
        return kept

    @property
    def tried(self) -> tuple[Tried, ...]:
        """The best setting of every model, with and without centring."""
        return tuple(one.tried for one in self._found.values())

    def best(self, only: Sequence[str] = ()) -> HeldOut:
        """Return what was found of the best model, or of the best one of ``only``; there must be enough subjects."""
        fitting = [one for one in self._found.values() if not only or one.tried.name in only]
        return max(fitting, key=lambda one: one.tried.score)

    def settings(self, name: str) -> int:
        """Return how many settings of a model were compared: strengths or weights, with and without centring."""
        own = len(self.ways) * (len(BLENDS) if name in self.stacks else len(self.strengths))
        return own + sum(self.settings(part) for part in self.stacks.get(name, ()))

    def fitted(self, only: Sequence[str] = ()) -> LinearModel:
        """Return the best model, or the best one of ``only``, fitted on all windows."""
        if self.subjects < LEAST_GROUPS:
            name = [one for one in self.candidates if not only or one in only or len(self.candidates) == 1][-1]
            usual = self.strengths[0] if len(self.strengths) == 1 else DEFAULT_STRENGTH
            plain = Tried(name, False, usual, 0.0)
            self._spaces = {name: _Space(self.data, self.candidates[name])}
            return self._finished(plain, [(plain, 1.0)])
        best = self.best(only).tried
        return self._finished(best, self._shares(best.name, best.centred, 1.0))

    def _shares(self, name: str, centred: bool, share: float) -> list[tuple[Tried, float]]:
        """Return the candidates that a model adds up, each with its share."""
        one = self._found[name, centred].tried
        if one.blend is None:
            return [(one, share)]
        first, second = self.stacks[name]
        rest = self._shares(second, centred, share * (1 - one.blend))
        return self._shares(first, centred, share * one.blend) + rest

    def _finished(self, best: Tried, members: Sequence[tuple[Tried, float]]) -> LinearModel:
        """Fit the chosen model on all windows: ``members`` are the candidates that it adds up, and their shares."""
        data, weights, bias_K = self.data, [], np.zeros(self.data.outputs)
        spaces = [self._spaces[one.name] for one, _ in members]
        for (one, share), space in zip(members, spaces, strict=True):
            assert one.strength is not None
            ((weight_KQ, of_K),) = fit_path(data, space.rotated(best.centred), [one.strength], self.balanced)
            weights.append(share * space.turned_back(weight_KQ))
            bias_K += share * of_K
        return LinearModel(
            best.name,
            tuple(part for one, _ in members for part in self.candidates[one.name]),
            best.centred,
            best.strength,
            np.concatenate([space.shift_P for space in spaces]),
            np.concatenate([space.scale_P for space in spaces]),
            np.concatenate(weights, 1),
            bias_K,
            "auroc" if data.target_BK is None else "r2",
            self.subjects if self._found else 0,
            self.tried,
            {name: self.best([name]).averaged for name in dict.fromkeys(one.name for one in self.tried)},
        )


def _best(data: LabelledFeatures, output_RSBK: NDArray[np.float32]) -> tuple[int, float]:
    """Return the place of the best setting and its score, the mean over the repetitions."""
    scores_RS = [[score(data, output_BK) for output_BK in output_SBK] for output_SBK in output_RSBK]
    mean_S = np.mean(scores_RS, axis=0)
    place = int(np.argmax(mean_S))
    return place, float(mean_S[place])


class _Space:
    """Standardised features of some parts, and their principal axes. Only learned parts have used labels.

    The variances of all features sum to 1, and each part has the same share.
    """

    def __init__(
        self, data: LabelledFeatures, parts: Sequence[ReadoutPart], fitted: NDArray[np.intp] | None = None
    ) -> None:
        raw_BP = data.features(parts, fitted)
        self.shift_P, self.scale_P = standardisation(raw_BP, [data.sizes[part] for part in parts])
        self._group_B = data.group_B
        scaled_BP = ((raw_BP - self.shift_P) * self.scale_P).astype(np.float32)
        self.axes_PQ = principal_axes(scaled_BP)
        self._x_BQ = scaled_BP if self.axes_PQ is None else scaled_BP @ self.axes_PQ

    def rotated(self, centred: bool) -> NDArray[np.float32]:
        """Return the features along the axes, (B, Q); on request without the mean of each subject."""
        if not centred:
            return self._x_BQ
        _, place_B, count_G = np.unique(self._group_B, return_inverse=True, return_counts=True)
        order, first_G = np.argsort(place_B, kind="stable"), count_G.cumsum() - count_G
        sum_GQ = np.add.reduceat(self._x_BQ[order], first_G, axis=0, dtype=np.float64)  # much sooner than np.add.at
        mean_GQ = sum_GQ / count_G[:, None]
        return (self._x_BQ - mean_GQ[place_B]).astype(np.float32)

    def turned_back(self, weight_KQ: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return weights on standardised features from weights along the axes."""
        return weight_KQ if self.axes_PQ is None else weight_KQ @ self.axes_PQ.T.astype(np.float64)


def standardisation(
    raw_BP: NDArray[np.float32], sizes: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the shift and scale that give every part the same total variance, and 1 to all of them together.

    A feature that is constant says nothing and gets a scale of 0.
    """
    mean_P, std_P = raw_BP.mean(0, dtype=np.float64), raw_BP.std(0, dtype=np.float64)
    usable_P = std_P > 1e-6 * np.maximum(np.abs(raw_BP).max(0), 1e-12)
    share_P = np.repeat(sizes, sizes).astype(np.float64) * len(sizes)
    return mean_P, np.where(usable_P, 1 / np.where(usable_P, std_P, 1.0), 0.0) / np.sqrt(share_P)


def principal_axes(x_BP: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """Return the principal axes (P, Q) of wide features; None where features are few and need not be turned."""
    import torch

    most = min(AXES, x_BP.shape[0])
    if x_BP.shape[1] <= most:
        return None
    x = torch.from_numpy(x_BP)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the random start of the iteration; equal features give equal axes
        _, size_Q, axes_PQ = torch.svd_lowrank(x, q=most, niter=2)
    kept = size_Q > 1e-6 * size_Q[0]
    return np.asarray(axes_PQ[:, kept].numpy(), np.float32)


def _held_out(
    data: LabelledFeatures,
    parts: Sequence[ReadoutPart],
    space: _Space,
    ways: Sequence[bool],
    strengths: Sequence[float],
    balanced: bool,
    repeat: int,
) -> dict[bool, NDArray[np.float32]]:
    """Return for each strength the outputs of models that had not seen the window's subject, (S, B, K).

    There is one such array for each of ``ways``, without and with centring. Learned features are learned anew for each
    fold, without the subjects that it holds out.
    """
    learned = any(part in data.learners for part in parts)
    found = {centred: np.zeros((len(strengths), len(data.label_B), data.outputs), np.float32) for centred in ways}
    x_of = {} if learned else {centred: space.rotated(centred) for centred in ways}
    for fitted, held in subject_folds(data, repeat):
        own = _Space(data, parts, fitted) if learned else space
        for centred in ways:
            x_BQ = own.rotated(centred) if learned else x_of[centred]
            fits = fit_path(_part(data, fitted), x_BQ[fitted], strengths, balanced)
            for place, (weight_KQ, bias_K) in enumerate(fits):
                found[centred][place, held] = (x_BQ[held] @ weight_KQ.T + bias_K).astype(np.float32)
    return found


Fold = tuple[NDArray[np.intp], NDArray[np.intp]]
"""The windows to fit and those held out."""


def subject_folds(data: LabelledFeatures, repeat: int = 0) -> Sequence[Fold]:
    """Return folds in which no subject is both fitted and held out; classes are spread over the folds."""
    labels = tuple(data.label_B.tolist()) if data.target_BK is None else ()
    folds = _folds(labels, tuple(data.group_B.tolist()), repeat)
    return [(fitted.copy(), held.copy()) for fitted, held in folds]


@functools.lru_cache(maxsize=8)
def _folds(labels: tuple[int, ...], groups: tuple[Hashable, ...], repeat: int) -> Sequence[Fold]:
    """Return the folds, which all methods of a comparison share: scikit-learn takes a while to make them."""
    from sklearn.model_selection import GroupKFold, StratifiedGroupKFold

    count, label_B = min(FOLDS, len(set(groups))), np.array(labels or [0] * len(groups))
    if labels and np.bincount(label_B).max() >= count:  # with fewer windows it refuses
        folds: Any = StratifiedGroupKFold(count, shuffle=True, random_state=repeat)
    else:
        folds = GroupKFold(count, shuffle=True, random_state=repeat)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer subjects than folds is missing in some
        return [(fitted, held) for fitted, held in folds.split(label_B, label_B, np.array(groups)) if len(held)]


def _part(data: LabelledFeatures, chosen: NDArray[np.intp]) -> LabelledFeatures:
    """Return some windows, without their features."""
    return LabelledFeatures(
        data.raw_BP[:0],
        data.sizes,
        data.label_B[chosen],
        None if data.target_BK is None else data.target_BK[chosen],
        data.outputs,
        data.group_B[chosen],
    )


def fit_path(
    truth: LabelledFeatures, x_BQ: NDArray[np.float32], strengths: Sequence[float], balanced: bool
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Fit logistic or ridge regression for rising strengths; each fit begins with the one before.

    Returns weights (K, Q) and biases (K,) for all classes, also for those without a window, which are never predicted.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    if truth.target_BK is not None:
        return _ridge_path(truth.target_BK, x_BQ, strengths)
    present = np.unique(truth.label_B)
    found = []
    # These products are small: beside other work, threads that wait for each other take a hundred times as long.
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", ConvergenceWarning)  # weak ones may stop early; held-out subjects decide
        # The variances of all features sum to 1, so gradients are small: a larger tolerance ends strong fits at once.
        model: Any = LogisticRegression(
            max_iter=200, tol=1e-4, warm_start=True, class_weight="balanced" if balanced else None
        )
        for strength in strengths:
            weight_KQ, bias_K = np.zeros((truth.outputs, x_BQ.shape[1])), np.full(truth.outputs, -30.0)
            if len(present) == 1:
                bias_K[present] = 0.0
                found.append((weight_KQ, bias_K))
                continue
            model.set_params(C=strength).fit(x_BQ, truth.label_B)
            if len(present) == 2:  # scikit-learn has one row: the second class against the first
                weight_KQ[present[1]], bias_K[present] = model.coef_[0], [0.0, model.intercept_[0]]
            else:
                weight_KQ[present], bias_K[present] = model.coef_, model.intercept_
            found.append((weight_KQ, bias_K))
    return found


def _ridge_path(
    target_BK: NDArray[np.float32], x_BQ: NDArray[np.float32], strengths: Sequence[float]
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Fit ridge regression for all strengths from one eigendecomposition."""
    x, y = x_BQ.astype(np.float64), target_BK.astype(np.float64)
    centre_Q, centre_K = x.mean(0), y.mean(0)
    values, vectors = np.linalg.eigh((x - centre_Q).T @ (x - centre_Q))
    turned = vectors.T @ ((x - centre_Q).T @ (y - centre_K))
    found = []
    for strength in strengths:
        weight_KQ = (vectors @ (turned / (np.maximum(values, 0) + 1 / strength)[:, None])).T
        found.append((weight_KQ, centre_K - weight_KQ @ centre_Q))
    return found


def score(data: LabelledFeatures, output_BK: NDArray[np.float32]) -> float:
    """Return the mean AUROC of each class against the rest, or the mean R2 of the targets; 0.5 or 0 if undefined."""
    from sklearn.metrics import r2_score, roc_auc_score

    from cerebro_eeg.runs.decisions import softmax

    if data.target_BK is not None:
        return float(r2_score(data.target_BK, output_BK)) if len(output_BK) > 1 else 0.0
    probability_BK = softmax(output_BK)
    found = []
    for place in range(1 if data.outputs == 2 else 0, data.outputs):
        is_it = data.label_B == place
        if is_it.any() and not is_it.all():
            found.append(roc_auc_score(is_it, probability_BK[:, place]))
    return float(np.mean(found)) if found else 0.5
