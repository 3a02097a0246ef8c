"""Batches that stay on a GPU: made once, unless they are other windows or too many."""

import pytest
import torch

from cerebro_eeg.runs.kept_batches import SHARE, KeptBatches

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture
def made(monkeypatch):
    """A function that makes three batches of 400 bytes, and counts how often it did; a GPU has room for 1,200."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(1200 / SHARE), 10**9))

    def make(number=3):
        make.times += 1
        for place in range(number):
            yield place, (torch.full((100,), float(place)), None)

    make.times = 0
    return make


def values(batches):
    return [(form, float(tensors[0].sum())) for form, tensors in batches]


def test_batches_are_made_once_for_the_same_windows(made):
    kept, windows, others = KeptBatches(CUDA), object(), object()
    first = values(kept.of(windows, 64, made))
    assert first == [(0, 0.0), (1, 100.0), (2, 200.0)]
    assert values(kept.of(windows, 64, made)) == first
    assert made.times == 1
    values(kept.of(windows, 32, made))
    values(kept.of(others, 32, made))
    assert made.times == 3
    values(kept.of(others, 32, made))
    assert made.times == 3


def test_batches_that_do_not_fit_are_made_anew(made):
    kept, windows = KeptBatches(CUDA), object()
    for _ in range(2):
        assert len(values(kept.of(windows, 64, lambda: made(4)))) == 4
    assert made.times == 2


def test_a_round_that_ends_early_keeps_nothing(made):
    kept, windows = KeptBatches(CUDA), object()
    batches = kept.of(windows, 64, made)
    next(batches)
    batches.close()
    assert len(values(kept.of(windows, 64, made))) == 3
    assert made.times == 2


def test_a_cpu_keeps_nothing(made):
    kept, windows = KeptBatches(CPU), object()
    for _ in range(2):
        values(kept.of(windows, 64, made))
    assert made.times == 2
