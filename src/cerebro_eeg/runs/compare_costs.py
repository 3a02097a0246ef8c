"""How long the methods of ``compare`` will take here, from a few windows that are timed before the work."""

import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from cerebro_eeg.batch import Batch
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.runs import compare_methods as methods
from cerebro_eeg.runs.compare_methods import Group, Method, Question
from cerebro_eeg.runs.store_predictions import predict_windows

FIT = 1e-4
"""Seconds of a core for each window, repetition and pair of classes of a linear model: five strengths, five folds."""
FEATURE = 2.5e-5
"""Seconds of a core for each window and channel, to find the principal axes of features."""
BANDS = 0.022
"""Seconds of a core to learn bands once, for each squared channel."""
TIMED = 16
"""Windows that are timed."""


def costs_of(question: Question, model: Cerebro, pending: Mapping[Group, Sequence[Method]]) -> dict[str, float]:
    """Return about how many seconds each method takes here; rows that share features share their time."""
    known = len(question.known)
    windows = known + (0 if question.test is None else len(question.test))
    encoder = _encoder_seconds(question, model) if {"frozen", "random", "steps"} & set(pending) else 0.0
    pairs = max(1, len(question.known.names) - 1)
    linear = FIT * known * question.repeats * pairs + FEATURE * windows * len(question.channels)
    trainings = 5 * question.repeats * len(methods.RATES) + question.seeds
    found: dict[str, float] = {}
    for group, rows in pending.items():
        for row in rows:
            if group == "frozen":
                learned = BANDS * len(question.channels) ** 2 * (5 * question.repeats + 1)
                extra = learned / 2 if row.readout in methods.LEARNED else 0.0  # two rows share it
                found[row.name] = (encoder * windows + 8 * linear) / len(rows) + extra
            elif group == "random":
                found[row.name] = question.seeds * (encoder * windows + 5 * linear) / len(rows)
            elif group == "net":
                found[row.name] = trainings * methods.NET_EPOCHS * _net_seconds(question, row.name) * known
            elif group == "steps":  # a step takes about three forward passes
                found[row.name] = trainings * 3 * encoder * methods.windows_shown(row.name, known)
            else:
                found[row.name] = 0.0
    return found


def _encoder_seconds(question: Question, model: Cerebro) -> float:
    """Return the seconds that the encoder takes for one window of a task."""
    few = question.known.take(np.unique(np.linspace(0, len(question.known) - 1, TIMED).astype(np.int64)))

    def read(module: nn.Module, batch: Batch) -> torch.Tensor:
        assert isinstance(module, Cerebro)
        return module.encoder(batch).per_window()

    model.to(question.processes.device)
    took = []
    for _ in range(2):  # the first call warms up
        began = time.monotonic()
        predict_windows(model, question.store, few, question.processes, read=read)
        took.append(time.monotonic() - began)
    return min(took) / len(few)


def _net_seconds(question: Question, name: str) -> float:
    """Return the seconds that a training step of a small network takes for one window."""
    device, channels, samples = question.processes.device, len(question.channels), question.known.samples
    net = methods.net_of(name)(channels, samples, len(question.known.names), question.known.sfreq).to(device)
    x_BCT = torch.randn(TIMED, channels, samples, device=device)
    took = []
    for _ in range(2):
        began = time.monotonic()
        net(x_BCT).square().sum().backward()
        took.append(time.monotonic() - began)
    return min(took) / len(x_BCT)
