"""The order is a function of (seed, step): no window is lost or comes twice, and every process sees the same order."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cerebro_eeg.data.batching.order import Order, Step, in_order, mix64, permute
from cerebro_eeg.errors import CerebroError, ConfigError, InputError

COUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=4).filter(sum)


def pairs(step):
    return list(zip(step.source.tolist(), step.window.tolist(), strict=True))


def stream(order, steps):
    """(source, window, epoch) of steps 0, 1, ..."""
    return [
        entry
        for number in range(steps)
        for step in [order.step(number)]
        for entry in zip(step.source.tolist(), step.window.tolist(), step.epoch.tolist(), strict=True)
    ]


def test_mix64_is_splitmix64():
    """The first outputs of the published generator with seed 1234567."""
    seed = 1234567 + 0x9E3779B97F4A7C15 * np.arange(3, dtype=object)
    found = mix64(np.array([int(x) & (1 << 64) - 1 for x in seed], np.uint64))
    assert found.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(size=st.integers(1, 300), key=st.integers(0, 2**64 - 1))
def test_permutations_are_permutations(size, key):
    found = permute(np.arange(size), size, np.full(size, key, np.uint64))
    assert sorted(found.tolist()) == list(range(size))


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_permutations_are_equally_likely(size):
    keys = 12_000
    key = np.repeat(mix64(np.arange(keys, dtype=np.uint64)), size)
    found = permute(np.tile(np.arange(size), keys), size, key).reshape(keys, size)
    _, seen = np.unique(found, axis=0, return_counts=True)
    assert len(seen) == np.prod(range(1, size + 1))
    assert stats.chisquare(seen).pvalue > 1e-4  # fixed keys: the same number every time


def test_large_permutations_have_no_order():
    size = 100_003
    found = permute(np.arange(size), size, np.full(size, 7, np.uint64))
    assert len(np.unique(found)) == size
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(np.arange(size), found)[0, 1]) < 0.02
    other = permute(np.arange(size), size, np.full(size, 8, np.uint64))
    assert abs(np.corrcoef(found, other)[0, 1]) < 0.02


@given(seed=st.integers(0, 2**70), counts=COUNTS, batch=st.integers(1, 50))
def test_each_epoch_has_every_window_once(seed, counts, batch):
    order = Order(seed, counts, batch)
    found = stream(order, order.steps(3))
    total = sum(counts)
    everything = sorted((source, window) for source, count in enumerate(counts) for window in range(count))
    for epoch in range(3):
        part = found[epoch * total : (epoch + 1) * total]
        assert {e for _, _, e in part} == {epoch}
        assert sorted((source, window) for source, window, _ in part) == everything


@settings(max_examples=50)
@given(
    seed=st.integers(0, 99),
    sources=st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0.01, 0.5, 1, 3])), min_size=1, max_size=4),
    batch=st.integers(1, 64),
)
def test_weighted_sources_have_their_share_and_epochs_of_their_own(seed, sources, batch):
    counts, weights = [count for count, _ in sources], [weight for _, weight in sources]
    order = Order(seed, counts, batch, weights)
    found = stream(order, 200 // batch + 1)
    for source, (count, weight) in enumerate(sources):
        mine = [(window, epoch) for s, window, epoch in found if s == source]
        assert [epoch for _, epoch in mine] == [place // count for place in range(len(mine))]
        for start in range(0, len(mine) - count + 1, count):
            assert sorted(window for window, _ in mine[start : start + count]) == list(range(count))
        for length in (batch, len(found)):  # in every step, not only on average
            shown = sum(s == source for s, _, _ in found[:length])
            assert abs(shown - length * weight / sum(weights)) <= len(sources) + 0.05


def test_the_pattern_of_sources_goes_on_from_cycle_to_cycle():
    order = Order(5, [70_001, 1_000], 4096, [2.0, 1.0])
    found = [order.step(number) for number in range(33)]  # two cycles of 65,536 and a step
    source, window = (np.concatenate([getattr(step, name) for step in found]) for name in ("source", "window"))
    first = window[source == 0][:70_001]
    assert len(np.unique(first)) == 70_001
    assert len(np.unique(window[source == 1][1000:2000])) == 1000


def test_seeds_epochs_and_sources_differ():
    def of(seed, epoch, counts=(1000,)):
        return Order(seed, counts, 1000).step(epoch).window.tolist()

    orders = [of(0, 0), of(0, 1), of(1, 0), of(1, 1), of(0, 2), of(2, 0), of(2**64, 0), of(2**64 + 1, 0), of(2**70, 0)]
    assert len({tuple(order) for order in orders}) == len(orders)
    weighted = Order(0, [1000, 1000], 2000, [1, 1]).step(0)
    assert weighted.window[weighted.source == 0].tolist() != weighted.window[weighted.source == 1].tolist()


def test_the_order_is_the_same_in_every_version():
    assert pairs(Order(3, [7, 5], 8).step(1)) == [(1, 3), (0, 3), (1, 4), (1, 2), (0, 2), (1, 1), (0, 3), (1, 4)]


@settings(max_examples=25)
@given(batch=st.integers(1, 70), number=st.integers(0, 20), weighted=st.booleans())
def test_worlds_and_workers_see_one_stream(batch, number, weighted):
    def order():
        return Order(1, [50, 31], batch, [1, 2] if weighted else None)

    whole = order().step(number)
    for world in (1, 2, 4):
        parts = [order().step(number).part(rank, world) for rank in range(world)]  # each rank with an order of its own
        assert [pair for part in parts for pair in pairs(part)] == pairs(whole)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        for workers in range(1, 9):
            found = [part.part(worker, workers) for part in parts for worker in range(workers)]
            assert [pair for part in found for pair in pairs(part)] == pairs(whole)


def test_another_process_sees_the_same_stream():
    code = (
        "from cerebro_eeg.data.batching.order import Order; order = Order(11, [1000, 300], 64, [1, 3]); "
        "print([order.step(n).part(1, 2).window.tolist() for n in (5, 4, 1000000)])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    order = Order(11, [1000, 300], 64, [1, 3])
    assert found.strip() == str([order.step(n).window[32:].tolist() for n in (5, 4, 1000000)])


def test_epochs_and_steps():
    order = Order(0, [60, 40], 32)
    assert [order.steps(epochs) for epochs in (0, 0.1, 0.32, 1, 3, 8)] == [0, 1, 1, 4, 10, 25]
    assert order.epochs(25) == 8.0
    assert all(order.epochs(order.steps(e / 7)) >= e / 7 - 1e-6 for e in range(50))
    assert order.windows == 100
    assert Order(0, [15_800_000], 4096).steps(100) == 385_743  # 1.58e9 / 4096 = 385,742.2


def test_all_windows_in_order_for_evaluation():
    found = list(in_order([3, 0, 4], 5))
    assert [len(step) for step in found] == [5, 2]
    assert [pair for step in found for pair in pairs(step)] == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2), (2, 3)]
    assert isinstance(found[0], Step)


def test_mistakes_are_named():
    for wrong, kind in [
        (lambda: Order(-1, [3], 2), ConfigError),
        (lambda: Order(0, [3], 0), ConfigError),
        (lambda: Order(0, [], 2), InputError),
        (lambda: Order(0, [0, 0], 2), InputError),
        (lambda: Order(0, [3, 4], 2, [1]), ConfigError),
        (lambda: Order(0, [3, 4], 2, [1, float("nan")]), ConfigError),
        (lambda: Order(0, [3, 4], 2, [0, 0]), ConfigError),
        (lambda: Order(0, [3, 0], 2, [1, 1]), ConfigError),
        (lambda: Order(0, [3, 4], 2, [1, 1e-9]), ConfigError),
        (lambda: Order(0, [3], 2).step(-1), ConfigError),
        (lambda: Order(0, [3], 2).step(0).part(2, 2), ConfigError),
    ]:
        with pytest.raises(kind) as caught:
            wrong()
        assert isinstance(caught.value, CerebroError)
        assert "\n" not in str(caught.value)
    assert set(Order(0, [3, 4], 50, [1, 0]).step(0).source.tolist()) == {0}


@pytest.mark.parametrize("weights", [None, [1, 3]])
def test_steps_that_are_kept_are_the_same_and_cannot_be_changed(weights):
    order = Order(5, [70, 40], 16, weights)
    first = order.step(0)
    assert order.step(0) is first
    with pytest.raises(ValueError, match="read-only"):
        first.window[0] = 0
    for number in range(1, 2000):
        order.step(number)
    again = order.step(0)
    assert again is not first  # memory is bounded
    for a, b in zip((first.source, first.window, first.epoch), (again.source, again.window, again.epoch), strict=True):
        assert a.tolist() == b.tolist()
