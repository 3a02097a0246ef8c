"""Windows in memory are read as those of a store: the same samples, subjects and scales."""

import numpy as np
import pytest

from cerebro_eeg.config import SignalConfig
from cerebro_eeg.data.batching.arrays import ArrayTask, array_windows
from cerebro_eeg.data.batching.loader import Loader, lay_out
from cerebro_eeg.data.batching.order import in_order
from cerebro_eeg.data.storing.writer import robust_scale
from cerebro_eeg.errors import InputError

NAMES = ["Fp1", "Cz", "O1-O2"]
GROUP = np.array([2, 0, 2, 1, 0, 2])
LABEL = np.array([0, 1, 1, 0, 0, 1])
X = np.random.default_rng(0).normal(size=(6, 3, 32)) * 20 * (1 + GROUP[:, None, None])
TASK = ArrayTask("classification", ("a", "b"), LABEL)


def made(x=X, task=TASK, **given):
    return array_windows(x, NAMES, 256.0, SignalConfig(), task, **given)


def read(store, windows, **given):
    with Loader([(store, windows)], **given) as loader:
        return [loader.read(step) for step in in_order([len(windows)], 4)]


@pytest.mark.parametrize("processes", [False, True])
def test_every_window_is_read_in_the_order_given(processes):
    store, windows = made(group_B=GROUP)
    raws = read(store, windows, threads=1, processes=processes)  # no file: no process reads for a thread
    signal = np.concatenate([lay_out(raw, "cpu").signal_RT.reshape(-1, 3, 32).numpy() for raw in raws])
    np.testing.assert_array_equal(signal, X.astype(np.float16))
    assert np.concatenate([raw.label_B.numpy() for raw in raws]).tolist() == LABEL.tolist()
    assert windows.subject.tolist() == GROUP.tolist()
    np.testing.assert_array_equal(store.read(2, 16, 80), np.concatenate(X[GROUP == 2], 1).T[16:80].astype(np.float16))
    assert store.recordings[2].samples == 96


def test_scales_are_those_of_recordings():
    def scale_of(mine):
        return robust_scale(np.concatenate(X[mine].transpose(0, 2, 1)).astype(np.float16))

    def scales(**given):
        _, windows = made(**given)
        return windows.facts.scale[windows.recording].tolist()

    assert scales(group_B=GROUP) == [scale_of(group == GROUP) for group in GROUP]
    everything = [scale_of(np.full(6, True))] * 6
    assert scales() == scales(together=True) == everything
    known = np.array([1, 2, 3, 4, 2, 1], np.float32)
    assert scales(group_B=GROUP, scale_B=known) == known.tolist()


def test_windows_without_a_subject_are_alone_or_together():
    assert len(made()[1].facts.ids) == 6
    assert len(made(together=True)[1].facts.ids) == 1
    assert made()[1].subject.tolist() == [-1] * 6
    _, windows = made(group_B=GROUP, scale_B=np.array([1, 2, 3, 4, 2, 1], np.float32))
    assert len(windows.facts.ids) == 4  # a recording has one scale; subjects stay who they are
    assert windows.subject.tolist() == GROUP.tolist()


def test_the_hash_is_of_samples_and_channels():
    first = made()[0].hash()
    assert made()[0].hash() == first
    other = X.copy()
    other[0, 0, 0] += 1
    assert made(other)[0].hash() != first
    assert len({one.id for one in made()[0].recordings}) == 6


def test_what_half_precision_cannot_hold_is_refused():
    with pytest.raises(InputError, match="values above 65,504 uV"):
        made(X * 1e4)
