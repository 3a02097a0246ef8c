"""Methods: the rows of ``compare``. Each learns a task from the same labelled windows and answers the same new ones.

There are four ways to learn. A *guess* gives the shares of the classes. A *linear* model reads features of a window:
simple ones, or those of a frozen encoder, or both. A *net* is a small network that learns from nothing but the labels.
*Steps* train CEReBrO itself by gradient.

Every method has the same number of settings: five strengths (or learning rates), each with and without centring per
subject. Cross-validation over the same folds of subjects chooses among them. A weighted sum of two models has the
settings of both, and a few weights; simple features have such a row, too.

Legend: **B** windows, **K** outputs, **C** channels, **T** samples, **R** repetitions of the cross-validation.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cerebro_eeg.batch import Batch
from cerebro_eeg.config import ReadoutPart
from cerebro_eeg.config import preset as named_preset
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, import_trouble
from cerebro_eeg.files import replacing
from cerebro_eeg.model import checkpoint, hub
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.encoder import Encoder
from cerebro_eeg.model.readouts import Readout, fixed_signal, widths
from cerebro_eeg.model.small_nets import EegNet, train_net
from cerebro_eeg.runs import few_subjects
from cerebro_eeg.runs.decisions import centre
from cerebro_eeg.runs.linear_models import (
    CrossValidation,
    LabelledFeatures,
    Learner,
    groups_of,
    score,
    subject_folds,
    varies_within,
)
from cerebro_eeg.runs.readout_choice import (
    FINE,
    READOUTS,
    SIMPLE,
    STACKS,
    WIDE,
    BandLearner,
    fit_token_components,
    fitting_names,
    head_outputs,
    members,
    raw_features,
    readout_config,
)
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.store_predictions import predict_windows
from cerebro_eeg.runs.windows import Electrodes, LabelledTask
from cerebro_eeg.train.distributed import ProcessGroup

Say = Callable[[str], None]
Tell = Callable[[float], None]
"""Is called with the share of a group of methods that is done."""
Group = Literal["guess", "frozen", "random", "net", "steps"]
Family = Literal["chance", "simple", "net", "control", "ours"]

RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
"""Learning rates of small networks to choose from."""
STEP_RATES = {
    "from scratch": (1e-4, 2e-4, 5e-4, 1e-3, 2e-3),
    "adapters": (3e-5, 1e-4, 3e-4, 1e-3, 3e-3),
    "fine-tuned": (2e-5, 5e-5, 1e-4, 2e-4, 5e-4),
}
"""Learning rates of CEReBrO's own training to choose from."""
EPOCHS = {"from scratch": 30, "fine-tuned": 15}
"""Epochs of CEReBrO's own training."""
STEPS = {"adapters": 200}
"""Steps of a training that counts no epochs."""
BATCH = 64
"""Windows of a step of CEReBrO's own training."""
NET_EPOCHS = 40
"""Most epochs of a small network."""


@dataclass(frozen=True)
class Method:
    """One row of the table."""

    name: str
    family: Family
    group: Group
    about: str
    readout: str = ""
    """What a linear model reads: a name of READOUTS, a stack, or "auto" for the best of ours."""


METHODS: tuple[Method, ...] = (
    Method("chance", "chance", "guess", "the shares of the classes, or the mean of the values"),
    Method("band power", "simple", "frozen", "log power of every channel in six bands, linear model", "power"),
    Method("filter-bank covariance", "simple", "frozen", "log covariances in six bands, linear model", "tangent"),
    Method("power and covariance", "simple", "frozen", "both side by side, linear model", "simple"),
    Method("with narrow bands", "simple", "frozen", "these and finer frequencies, a weighted sum", "signal"),
    Method("band head", "net", "frozen", "learned bands, a covariance each, linear head; no transformer", "bands"),
    Method("EEGNet", "net", "net", "EEGNet-8,2 from scratch"),
    Method("mean, random weights", "control", "random", "the paper's probe on an encoder that learned nothing", "mean"),
    Method("encoder, random weights", "control", "random", "our read-out of such an encoder", "encoder"),
    Method("hybrid, random weights", "control", "random", "that and power and covariance, a weighted sum", "hybrid"),
    Method("whole, random weights", "control", "random", "that and narrow bands as well, a weighted sum", "whole"),
    Method("mean, frozen", "ours", "frozen", "the paper's probe: mean of the last tokens, linear head", "mean"),
    Method("encoder, frozen", "ours", "frozen", "our read-out of the frozen encoder, linear head", "encoder"),
    Method("hybrid, frozen", "ours", "frozen", "that and power and covariance, a weighted sum", "hybrid"),
    Method("whole, frozen", "ours", "frozen", "that and narrow bands as well, a weighted sum", "whole"),
    Method("everything, frozen", "ours", "frozen", "that and learned bands as well, a weighted sum", "everything"),
    Method("from scratch", "control", "steps", "CEReBrO of the same size, all weights trained on the labels alone"),
    Method("adapters", "ours", "steps", "the frozen probe's head first, then low-rank adapters (LoRA)"),
    Method("fine-tuned", "ours", "steps", "all weights trained, from the pre-trained ones"),
    Method("default", "ours", "frozen", "what finetune --freeze saves: the best of its read-outs", "auto"),
)
BY_NAME = {method.name: method for method in METHODS}
ANY_MONTAGE = ("chance", "mean, random weights", "mean, frozen", "from scratch", "adapters", "fine-tuned", "default")
"""Methods that need no channels that all windows share."""
LEARNED = ("bands", "everything")
"""Read-outs with learned bands, which take minutes."""
NETS: Mapping[str, Callable[[int, int, int, float], nn.Module]] = {"EEGNet": EegNet}
BRAINDECODE = "braindecode:"


def method_of(name: str) -> Method:
    """Return a method by its name; ``braindecode:NAME`` is any model of that package."""
    if name.startswith(BRAINDECODE):
        return Method(name, "net", "net", f"{name.removeprefix(BRAINDECODE)} of braindecode, from scratch")
    if name not in BY_NAME:
        known = ", ".join(BY_NAME)
        raise ConfigError(f"methods has {name!r}; expected some of {known}, or braindecode:NAME")
    return BY_NAME[name]


@dataclass(frozen=True)
class Question:
    """A task with the windows to learn from, and those to answer."""

    store: Store
    task: LabelledTask
    known: Windows
    """Windows of training and validation subjects."""
    test: Windows | None
    train: Windows
    """Those of them that principal components of tokens are fitted on: the training split, as ``finetune`` does."""
    channels: tuple[str, ...]
    """Channels that all windows share, under their own names."""
    processes: ProcessGroup
    balanced: bool
    repeats: int
    seeds: int

    @property
    def truth(self) -> LabelledFeatures:
        """The truth of the known windows, without features."""
        known = self.known
        outputs = len(known.names)
        empty = np.zeros((len(known), 0), np.float32)
        return LabelledFeatures(empty, {}, known.label, known.target, outputs, groups_of(known))


@dataclass(frozen=True)
class MethodAnswer:
    """What a method says, and how its setting was chosen."""

    held_out_BK: NDArray[np.float32]
    """Outputs for every known window by models that had not seen its subject."""
    test_BK: tuple[NDArray[np.float32], ...]
    """Outputs for the test windows, one array for each seed; empty without a test split."""
    score: float
    """The cross-validated score of the setting that was chosen."""
    settings: int
    """How many settings were compared."""
    chosen: Mapping[str, Any]


# Guessing


def guess(question: Question) -> MethodAnswer:
    """MethodAnswer with the shares of the classes, or the mean of the values, whatever the window."""
    truth = question.truth
    if truth.target_BK is not None:
        output_K = truth.target_BK.mean(0)
    else:
        count_K = np.bincount(truth.label_B, minlength=truth.outputs)
        output_K = np.log(np.maximum(count_K / count_K.sum(), 1e-6))
    always = [np.tile(output_K.astype(np.float32), (len(of), 1)) for of in (question.known, question.test) if of]
    return MethodAnswer(always[0], tuple(always[1:]), score(truth, always[0]), 0, {})


# Linear models on features


@dataclass(frozen=True)
class Features:
    """Features of the known windows and of the test windows, part after part."""

    known_BP: NDArray[np.float32]
    test_BP: NDArray[np.float32] | None
    sizes: Mapping[ReadoutPart, int]
    learners: Mapping[ReadoutPart, Learner] = field(default_factory=dict)
    """Parts that are learned with labels, anew for each fold."""

    def beside(self, other: "Features") -> "Features":
        """Return both, side by side."""
        test = None
        if self.test_BP is not None and other.test_BP is not None:
            test = np.concatenate([self.test_BP, other.test_BP], 1)
        known = np.concatenate([self.known_BP, other.known_BP], 1)
        return Features(known, test, {**self.sizes, **other.sizes}, {**self.learners, **other.learners})


def simple_features(question: Question, model: Cerebro, learned: bool, say: Say) -> Features:
    """Return features of the signal, which use no encoder and every channel that the windows share.

    With ``learned`` they include learned bands. Narrow bands are left out where covariances would fill the memory.
    """
    parts = SIMPLE if len(question.channels) >= WIDE else (*SIMPLE, *FINE)
    parts = (*parts, *(("bands",) if learned else ()))
    readout = Readout(readout_config(parts, question.channels), model.config).to(question.processes.device)
    learners: dict[ReadoutPart, Learner] = {}
    if readout.bands is not None:
        learner = BandLearner(readout, question.store, [question.known], question.processes, None, question.balanced)
        readout.bands.load_state_dict(learner.fitted().state_dict())
        learners["bands"] = learner

    def read(module: nn.Module, batch: Batch) -> torch.Tensor:
        assert isinstance(module, Readout)
        return module.raw(batch, cast(Encoder, None))  # these parts need no encoder

    def of(windows: Windows) -> NDArray[np.float32]:
        return predict_windows(readout, question.store, windows, question.processes, read=read, say=say)

    return dataclasses.replace(_features(question, readout, of), learners=learners)


def encoder_features(
    question: Question,
    model: Cerebro,
    channels: Sequence[str],
    electrodes: Electrodes | None,
    names: Sequence[str],
    say: Say,
) -> Features:
    """Return what the named read-outs read of a frozen encoder."""
    parts = tuple(dict.fromkeys(part for name in names for part in READOUTS[name]))
    readout = Readout(readout_config(parts, channels), model.config).to(question.processes.device)
    model.to(question.processes.device)
    fit_token_components(readout, model, question.store, question.train, question.processes, electrodes)

    def of(windows: Windows) -> NDArray[np.float32]:
        return raw_features(model, readout, question.store, windows, question.processes, electrodes, say)

    return _features(question, readout, of)


def _features(question: Question, readout: Readout, of: Callable[[Windows], NDArray[np.float32]]) -> Features:
    sizes = dict(zip(readout.config.parts, widths(readout.config, readout.model), strict=True))
    return Features(of(question.known), None if question.test is None else of(question.test), sizes)


def linear_answers(
    question: Question,
    features: Features,
    readouts: Sequence[str],
    tell: Callable[[str], None],
    before: CrossValidation | None = None,
) -> tuple[dict[str, MethodAnswer], CrossValidation]:
    """Return the answer of each read-out whose features are there; "auto" is the best of ours.

    What ``before`` found of candidates without an encoder is taken over, and what was found now is returned for it.
    """
    data = dataclasses.replace(
        question.truth, raw_BP=features.known_BP, sizes=features.sizes, learners=features.learners
    )
    auto = fitting_names("auto", question.channels, lambda line: None)
    asked = [one for name in readouts for one in (auto if name == "auto" else (name,))]
    candidates, stacks = members([name for name in asked if set(READOUTS[name]) <= set(features.sizes)])
    crossed = CrossValidation(
        data,
        candidates,
        stacks,
        balanced=question.balanced,
        repeats=question.repeats,
        before=before,
        tell=tell,
    )
    found = {}
    for readout in readouts:
        only = auto if readout == "auto" else (readout,)
        if not set(only) <= {*candidates, *stacks}:
            continue
        best = crossed.best(only)
        fitted = crossed.fitted(only)
        test: tuple[NDArray[np.float32], ...] = ()
        if features.test_BP is not None and question.test is not None:
            test = (fitted.outputs(features.test_BP[:, data.columns(fitted.parts)], groups_of(question.test)),)
        chosen: dict[str, Any] = {"readout": fitted.name, "centred": fitted.centred, "strength": fitted.strength}
        if best.tried.blend is not None:
            chosen |= {"weight": best.tried.blend, "of": STACKS[fitted.name][0]}
        settings = sum(crossed.settings(name) for name in only)
        found[readout] = MethodAnswer(best.averaged, test, best.tried.score, settings, chosen)
    alone = [name for name, parts in candidates.items() if set(parts) <= {*SIMPLE, *FINE}]
    return found, crossed.keeping(alone)


def mean_over_seeds(answers: Sequence[MethodAnswer]) -> MethodAnswer:
    """Return one answer for several seeds of a random encoder: mean score, and the test outputs of each seed."""
    first = answers[0]
    return MethodAnswer(
        np.mean([one.held_out_BK for one in answers], axis=0),
        tuple(test for one in answers for test in one.test_BK),
        float(np.mean([one.score for one in answers])),
        first.settings,
        {**first.chosen, "scores": [round(one.score, 4) for one in answers]},
    )


# Training: small networks, and CEReBrO by gradient steps

Train = Callable[[NDArray[np.intp], NDArray[np.intp] | None, float, int, str], NDArray[np.float32]]
"""Trains on some of the known windows, and returns outputs for others of them, or for all test windows (None). The rest
is the learning rate, the seed, and a name for this training."""


def trained_answer(
    question: Question, train: Train, rates: Sequence[float], work: Path, tell: Callable[[float], None]
) -> MethodAnswer:
    """Choose a learning rate and centring by cross-validation, then train on all known windows, once for each seed.

    Outputs of every finished training are kept in ``work``, so that a stopped comparison goes on behind them.
    """
    truth, everything = question.truth, np.arange(len(question.known))
    folds = [list(subject_folds(truth, repeat)) for repeat in range(question.repeats)]
    total = len(rates) * sum(map(len, folds)) + (0 if question.test is None else question.seeds)
    done = 0

    def kept(name: str, fitted: NDArray[np.intp], asked: NDArray[np.intp] | None, rate: float, seed: int) -> Any:
        nonlocal done
        path = work / f"{name}.npy"
        if not path.exists():
            output = train(fitted, asked, rate, seed, name)
            with replacing(path) as temporary, temporary.open("wb") as file:
                np.save(file, output, allow_pickle=False)
        done += 1
        tell(done / total)
        return np.load(path, allow_pickle=False)

    output_RSBK = np.zeros((question.repeats, len(rates), len(everything), truth.outputs), np.float32)
    for repeat, of_repeat in enumerate(folds):
        for place, rate in enumerate(rates):
            for number, (fitted, held) in enumerate(of_repeat):
                name = f"rate-{place}-repeat-{repeat}-fold-{number}"
                output_RSBK[repeat, place, held] = kept(name, fitted, held, rate, 0)
    ways = (False, True) if varies_within(truth) else (False,)
    found = {}
    for place in range(len(rates)):
        for centred in ways:
            answers_RBK = output_RSBK[:, place]
            if centred:
                mean_K = answers_RBK.mean((0, 1))
                answers_RBK = np.stack([centre(one_BK, truth.group_B, mean_K) for one_BK in answers_RBK])
            scored = float(np.mean([score(truth, one_BK) for one_BK in answers_RBK]))
            found[place, centred] = scored, answers_RBK.mean(0)
    place, centred = max(found, key=lambda setting: found[setting][0])
    best, held_out_BK = found[place, centred]
    tests = []
    if question.test is not None:
        mean_K = output_RSBK[:, place].mean((0, 1))
        for seed in range(question.seeds):
            output = kept(f"rate-{place}-all-seed-{seed}", everything, None, rates[place], seed)
            tests.append(centre(output, groups_of(question.test), mean_K) if centred else output)
    chosen = {"rate": rates[place], "centred": centred}
    return MethodAnswer(held_out_BK, tuple(tests), best, len(found), chosen)


def net_trainer(question: Question, name: str, say: Say) -> Train:
    """Return the training of a small network; it reads the channels that all windows share."""
    make = net_of(name)
    known, truth = signals(question, question.known), question.truth
    test = None if question.test is None else signals(question, question.test)
    goal = truth.label_B if truth.target_BK is None else truth.target_BK

    def train(
        fitted: NDArray[np.intp], asked: NDArray[np.intp] | None, rate: float, seed: int, _: str
    ) -> NDArray[np.float32]:
        wanted = test if asked is None else known[asked]
        assert wanted is not None
        fit = train_net(
            make,
            known[fitted],
            goal[fitted],
            truth.group_B[fitted],
            [wanted],
            outputs=truth.outputs,
            seed=seed,
            sfreq=question.known.sfreq,
            balanced=question.balanced and truth.target_BK is None,
            epochs=NET_EPOCHS,
            rate=rate,
            device=question.processes.device,
            say=say,
        )
        return fit.predictions[0]

    return train


def net_of(name: str) -> Callable[[int, int, int, float], nn.Module]:
    """Return a function that makes a small network for so many channels, samples and outputs, and a rate."""
    return NETS[name] if name in NETS else _of_braindecode(name.removeprefix(BRAINDECODE))


def _of_braindecode(name: str) -> Callable[[int, int, int, float], nn.Module]:
    try:
        from braindecode import models
    except ImportError as error:
        raise ConfigError(f"{BRAINDECODE}{name} cannot be made: {import_trouble(error, 'braindecode')}") from None
    if not hasattr(models, name):
        raise ConfigError(f"braindecode has no model {name!r}; see the names in braindecode.models")

    def make(channels: int, samples: int, outputs: int, sfreq: float) -> nn.Module:
        found: nn.Module = getattr(models, name)(n_chans=channels, n_times=samples, n_outputs=outputs, sfreq=sfreq)
        return found

    return make


def signals(question: Question, windows: Windows) -> NDArray[np.float32]:
    """Return windows as (B, C, T), divided by the scale of their recording."""

    def read(module: nn.Module, batch: Batch) -> torch.Tensor:
        return fixed_signal(batch, question.channels).flatten(1)

    flat = predict_windows(nn.Identity(), question.store, windows, question.processes, read=read)
    return flat.reshape(len(windows), len(question.channels), windows.samples)


def random_encoders(model: Cerebro, seeds: int) -> Iterator[Cerebro]:
    """Yield new encoders of the same size, one for each seed; they learned nothing."""
    for seed in range(seeds):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield Cerebro(2, config=model.config, n_times=model.config.window)


def windows_shown(name: str, known: int) -> int:
    """Return how many windows a training of CEReBrO is shown, repetitions counted."""
    return EPOCHS[name] * known if name in EPOCHS else STEPS[name] * BATCH


def step_trainer(
    question: Question, name: str, start: Path, engine: Engine, electrodes: Electrodes | None, work: Path, say: Say
) -> Train:
    """Return the training of CEReBrO itself by gradient steps: from new weights, of adapters, or of all weights.

    No window is held out of a training to stop it: its length is fixed, and cross-validation chooses the rate.
    """
    from cerebro_eeg.runs import finetune

    scratch = name == "from scratch"
    sized = named_preset("small")
    if scratch:
        sized = dataclasses.replace(sized, model=checkpoint.read_header(hub.find(start)).model)

    def train(
        fitted: NDArray[np.intp], asked: NDArray[np.intp] | None, rate: float, seed: int, named: str
    ) -> NDArray[np.float32]:
        windows = question.known.take(np.sort(fitted))
        epochs = EPOCHS.get(name, 2)
        table = dataclasses.replace(sized.finetune, batch_size=BATCH, peak_lr=rate, epochs=epochs, warmup_epochs=1)
        options = finetune.FinetuneOptions(
            question.task.task,
            (seed,),
            steps=STEPS.get(name, epochs * -(-len(windows) // BATCH)),
            balanced=question.balanced,
            paper=True,
            lora=few_subjects.RANK if name == "adapters" else None,
            few=True if name == "adapters" else None,
        )
        model = finetune.train_on(
            question.store,
            question.task,
            windows,
            work / f"{named}-run",
            dataclasses.replace(sized, finetune=table),
            options,
            engine,
            question.processes,
            None if scratch else start,
            say=say,
        )
        part = question.test if asked is None else question.known.take(asked)
        assert part is not None
        ids = None if scratch else electrodes
        return head_outputs(model, question.store, part, question.processes, electrodes=ids)

    return train
