"""Streams of CUDA graphs: an owner has one for itself, and those of owners that are gone are used again."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from cerebro_eeg.fast import graph

CUDA = torch.device("cuda", 0)


class Owner:
    """Something with a stream of its own."""

    def __init__(self):
        self.handle = graph.own_stream(self, CUDA).cuda_stream


@pytest.fixture(autouse=True)
def turns(monkeypatch):
    """Torch hands 32 streams out in turns."""
    handles = itertools.cycle(range(graph.STREAMS))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(cuda_stream=next(handles)))
    monkeypatch.setattr(graph, "_owners", type(graph._owners)())
    monkeypatch.setattr(graph, "_released", {})


def test_the_stream_of_an_owner_that_is_gone_is_used_again():
    first = Owner()
    handle = first.handle
    del first
    for _ in range(5):  # otherwise cuBLAS would keep a workspace for each of them
        assert Owner().handle == handle


def test_owners_at_the_same_time_have_different_streams():
    owners = [Owner() for _ in range(graph.STREAMS)]
    assert len({owner.handle for owner in owners}) == graph.STREAMS
    gone = {owner.handle for owner in owners[:10]}
    del owners[:10]
    assert {owner.handle for owner in [Owner() for _ in range(10)]} == gone


def test_a_stream_of_two_owners_is_free_once_both_are_gone():
    owners = [Owner() for _ in range(graph.STREAMS + 1)]  # the last one shares
    shared = owners[-1].handle
    assert [owner.handle for owner in owners].count(shared) == 2
    keeper = owners[-1]
    owners.clear()
    others = [Owner() for _ in range(graph.STREAMS - 1)]
    assert shared not in {owner.handle for owner in others}
    del keeper
    assert Owner().handle == shared
