"""Random numbers of windows against plain integer arithmetic, and the noise that fine-tuning adds with them."""

import math

import numpy as np
import pytest
import torch

from cerebro_eeg.config import FinetuneConfig
from cerebro_eeg.data.batching.loader import Loader, lay_out
from cerebro_eeg.data.batching.order import Order
from cerebro_eeg.fast import use
from cerebro_eeg.runs.finetune import LabelTask
from cerebro_eeg.runs.windows import find_splits, read_task
from cerebro_eeg.train import random_numbers
from cerebro_eeg.train.distributed import ProcessGroup
from train_stores import make_store

WORD = (1 << 64) - 1


def mixed(x):
    """The finaliser of SplitMix64, one whole number at a time."""
    x = (x + 0x9E3779B97F4A7C15) & WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)


def unit(key, place):
    return (mixed(mixed(place & WORD) ^ (key & WORD)) >> 40) / 2**24


def bell(key, place):
    return math.sqrt(-2 * math.log(1 - unit(key, 2 * place))) * math.cos(2 * math.pi * unit(key, 2 * place + 1))


KEYS, PLACES = [0, 5, -3, 2**62, -(2**63)], [0, 1, 77, 10**12]


def test_uniform_numbers_are_those_of_the_finaliser():
    found = random_numbers.uniform(torch.tensor(KEYS)[:, None], torch.tensor(PLACES))
    assert found.tolist() == [[unit(key, place) for place in PLACES] for key in KEYS]


def test_uniform_numbers_of_numpy_are_the_same():
    keys, places = torch.tensor(KEYS), np.array(PLACES)
    found = random_numbers.uniform_on_cpu(keys[:, None], places)
    assert torch.equal(found, random_numbers.uniform(keys[:, None], torch.from_numpy(places)))
    assert keys.tolist() == KEYS  # what is given stays as it was
    assert places.tolist() == PLACES


def test_normal_numbers_are_those_of_box_and_muller():
    key, place = torch.tensor(KEYS)[:, None], torch.tensor(PLACES)
    found = random_numbers.normal(key, random_numbers.scrambled(place))
    expected = np.array([[bell(one, other) for other in PLACES] for one in KEYS])
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-6)
    assert key.flatten().tolist() == KEYS  # what is given stays as it was
    assert place.tolist() == PLACES


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_the_noise_of_a_window_is_its_own_in_any_batch_and_montage(tmp_path, dtype):
    store = make_store(tmp_path / "store", 6, 8)  # windows of two, three and five channels
    windows = next(iter(find_splits(store, read_task(store, "alpha", 1.0, None, None), None))).train
    config, device, noisy, clean = FinetuneConfig(noise_ratio=0.2, noise_probability=0.5), torch.device("cpu"), 0, 0
    with Loader([(store, windows)], threads=0) as loader:
        order = Order(3, [len(windows)], 16)
        task = LabelTask(windows, order, loader, config, 2, False, 3, ProcessGroup(), 1, dtype)
        ((micro_batch,),) = task.micro_batches(0, 1)
        raw = micro_batch.raw
        plain, found = lay_out(raw, device, dtype).signal_RT, task.inputs(micro_batch).tensors[0]
        first = 0
        for window, count in enumerate(raw.kept_counts()):
            rows = slice(first, first + count)
            first += count
            key, epoch = raw.key_B[window : window + 1], raw.epoch_B[window : window + 1]
            ask = [random_numbers.window_keys(3, key, epoch, purpose) for purpose in (3, 2)]  # choice, noise
            if unit(int(ask[0]), 0) >= 0.5:
                clean += 1
                assert torch.equal(found[rows], plain[rows].to(found.dtype))
                continue
            noisy += 1
            added = (found[rows] - plain[rows]) / (0.2 * plain[rows].double().std(-1, correction=0, keepdim=True))
            samples = plain.shape[1]
            for channel, time in ((0, 0), (count - 1, samples - 1)):
                expected = bell(int(ask[1]), channel * samples + time)
                assert float(added[channel, time]) == pytest.approx(expected, abs=1e-4)
            assert float(added.std()) == pytest.approx(1, abs=0.15)
    assert noisy > 3
    assert clean > 3


@pytest.mark.gpu
@pytest.mark.parametrize("kernels", ["auto", "stock"])
def test_inputs_on_a_gpu_are_those_of_a_cpu(tmp_path, kernels):
    store = make_store(tmp_path / "store", 6, 8)
    windows = next(iter(find_splits(store, read_task(store, "alpha", 1.0, None, None), None))).train
    config, found = FinetuneConfig(noise_ratio=0.2, noise_probability=0.5), []
    for device in (torch.device("cpu"), torch.device("cuda")):
        with Loader([(store, windows)], threads=0, pin=device.type == "cuda") as loader, use(kernels):
            order, processes = Order(3, [len(windows)], 16), ProcessGroup(device=device)
            task = LabelTask(windows, order, loader, config, 2, False, 3, processes, 1)
            ((micro_batch,),) = task.micro_batches(0, 1)
            inputs = task.inputs(micro_batch)
            found.append((inputs.form, [None if x is None else x.cpu() for x in inputs.tensors]))
    (form, plain), (other_form, other) = found
    assert form == other_form
    torch.testing.assert_close(other[0], plain[0], rtol=1e-5, atol=1e-4)
    for ours, theirs in zip(other[1:], plain[1:], strict=True):
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)
