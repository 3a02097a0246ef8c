"""How many threads a process takes by itself: torch's number, or fewer where other programs use the cores."""

import pytest
import torch

from cerebro_eeg.train import distributed
from cerebro_eeg.train.distributed import choose_threads, suitable_threads


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def pace(monkeypatch, seconds):
    """Products of matrices take so many seconds by the number of threads."""
    monkeypatch.setattr(distributed, "_seconds_of_products", lambda: seconds[torch.get_num_threads()])


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({4: 1.0, 2: 1.8, 1: 3.5}, 4),  # a quiet machine
        ({4: 1.0, 2: 0.9, 1: 0.8}, 4),  # not clearly slower: the number stays, and with it the bits
        ({4: 8.0, 2: 2.0, 1: 3.0}, 2),
        ({4: 80.0, 2: 9.0, 1: 3.0}, 1),
    ],
)
def test_fewer_threads_are_taken_only_where_they_are_clearly_faster(monkeypatch, seconds, chosen):
    torch.set_num_threads(3)
    pace(monkeypatch, seconds)
    assert suitable_threads(4) == chosen
    assert torch.get_num_threads() == 3


def test_what_the_user_chose_stays(monkeypatch):
    pace(monkeypatch, {2: 9.0, 1: 1.0})
    torch.set_num_threads(2)
    choose_threads(None)  # the tests set OMP_NUM_THREADS
    assert torch.get_num_threads() == 2
    monkeypatch.delenv("OMP_NUM_THREADS")
    choose_threads(2)
    assert torch.get_num_threads() == 2
    choose_threads(None)
    assert torch.get_num_threads() == 1


def test_timing_works():
    assert suitable_threads(2) in (1, 2)
