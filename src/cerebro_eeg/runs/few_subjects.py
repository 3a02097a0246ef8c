"""Fine-tuning for few labelled subjects: adapters (``finetune --lora``), and the recipe ``finetune --few``.

The recipe begins with the exact probe's head and trains adapters for few steps. A moving average of the weights is what
validation scores, and the probe itself, step 0, is one of the candidates. So the result is never worse on validation
than the probe.

Training has two models. One has adapters and learns. The other is plain: merged weights are copied into it before they
are scored or saved.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from cerebro_eeg.errors import ConfigError
from cerebro_eeg.model import lora
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.training import TrainingLength, gathered
from cerebro_eeg.runs.windows import Split
from cerebro_eeg.train.averaging import add_average, average_of, averaged
from cerebro_eeg.train.distributed import copy_into

if TYPE_CHECKING:
    from cerebro_eeg.runs.finetune import FinetuneOptions

RANK = 8
"""Rank of the recipe's adapters."""
STEPS = 200
"""Most steps of the recipe."""
CHECK = 20
"""Steps between two validations of the recipe. Few candidates keep the luck of the best one small."""
DECAY = 0.99
"""Decay of the recipe's moving average, for each step."""
HYPERPARAMETERS = {"finetune.peak_lr": 1e-4, "finetune.layer_decay": 1.0}
"""Fields of the preset that ``finetune --few`` changes, unless the user does. All layers learn as fast as the head."""


def settle(options: "FinetuneOptions", start: Path | None, engine: Engine) -> "FinetuneOptions":
    """Return the options with the recipe's rank and steps filled in; raise an error if they contradict each other."""
    if options.lora is None and not options.few:
        return options
    named = "--few" if options.few else "--lora"
    if options.lora is not None and options.lora < 1:
        raise ConfigError(f"lora is {options.lora}; expected a rank of at least 1, such as {RANK}")
    if options.freeze:
        raise ConfigError(f"{named} trains adapters in the encoder and --freeze keeps it as it is; say one of them")
    if start is None:
        raise ConfigError(f"{named} adapts pre-trained weights, and --from none has none; give a checkpoint or a run")
    if engine.strategy == "fsdp":
        raise ConfigError(f"{named} does not work with --strategy fsdp; leave it out: adapters need little memory")
    if not options.few:
        return options
    steps = STEPS if options.steps is None and options.minutes is None else options.steps
    return dataclasses.replace(options, lora=options.lora or RANK, steps=steps)


def check_splits(options: "FinetuneOptions", splits: Sequence[Split]) -> None:
    """Raise an error if the recipe has no validation windows, which decide whether its training has helped."""
    if options.few and any(split.validation is None or not len(split.validation) for split in splits):
        raise ConfigError(
            "--few needs validation windows, which decide whether training has helped, and the task has none; say "
            "--folds N, or --freeze for the probe alone"
        )


def checked_often(length: TrainingLength) -> TrainingLength:
    """Return the length with validations every so many steps: an epoch may have three steps, or more than the run."""
    return dataclasses.replace(length, epoch=CHECK)


def learner_of(plain: Cerebro, options: "FinetuneOptions", seed: int) -> Cerebro:
    """Return the model that learns: the plain one itself, or a copy of it with adapters."""
    if options.lora is None:
        return plain
    found = lora.adapted(plain, options.lora, seed)
    if options.few:
        add_average(found, DECAY)
    return found


def begin_with_head(learner: Cerebro, plain: Cerebro) -> None:
    """Copy the head of the plain model, which is the probe's, and let the average begin with it."""
    learner.final_layer.load_state_dict(plain.final_layer.state_dict())
    if learner.readout is not None and plain.readout is not None:
        learner.readout.load_state_dict(plain.readout.state_dict())
    if (average := average_of(learner)) is not None:
        average.update(learner, decay=0.0)


def update_average(learner: nn.Module) -> None:
    """Move the average, if there is one, toward the weights of the step that has just been made."""
    if (average := average_of(learner)) is not None:
        average.update(learner)


def fill_plain(plain: Cerebro, learner: nn.Module) -> None:
    """Copy what a model with adapters has learned into the plain one: averaged, and merged into the weights."""
    tensors = plain_tensors(gathered(learner))
    for name, value in plain.state_dict().items():
        copy_into(tensors[name], value)


def plain_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a plain checkpoint from those of any training: averaged, and with adapters merged."""
    return lora.merged(averaged(tensors))


def move_like(plain: Cerebro, learner: nn.Module) -> None:
    """Move the plain model to the device and precision of the model that learns, if they are two."""
    if plain is not learner:
        first = next(learner.parameters())
        plain.to(first.device, first.dtype)
