"""The parts of the engine by themselves: draws, schedule, groups."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cerebro_eeg.config import FinetuneConfig, PretrainConfig, preset
from cerebro_eeg.data.batching.order import Order
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.masked import MaskedCerebro
from cerebro_eeg.runs.training import plan_length
from cerebro_eeg.train import random_numbers
from cerebro_eeg.train.log import read_lines
from cerebro_eeg.train.optim import Schedule, adamw, group_parameters, layer_of
from tiny_models import small

WORD = (1 << 64) - 1


def mix(x):
    """SplitMix64's finaliser, in Python's whole numbers."""
    x = (x + 0x9E3779B97F4A7C15) & WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)


@given(
    seed=st.integers(0, 2**70),
    key=st.integers(-(2**63), 2**63 - 1),
    epoch=st.integers(0, 10**6),
    place=st.integers(0, 10**9),
    purpose=st.integers(0, 3),
)
def test_draws_are_the_arithmetic_that_they_say(seed, key, epoch, place, purpose):
    start = (seed & WORD) ^ ((purpose + 1) * 0xD1B54A32D192ED03 & WORD)
    window = mix(mix(mix((key & WORD) ^ start) ^ epoch) ^ start)
    wanted = (mix(mix(place) ^ window) >> 40) * 2.0**-24
    found = random_numbers.window_keys(seed, torch.tensor([key]), torch.tensor([epoch]), purpose)
    assert random_numbers.uniform(found, torch.tensor([place])).tolist() == [wanted]


def test_draws_look_random():
    keys = random_numbers.window_keys(7, torch.arange(1000), torch.zeros(1000, dtype=torch.int64), random_numbers.MASK)
    flat = random_numbers.uniform(keys[:, None], torch.arange(640))
    assert stats.kstest(flat.flatten().numpy(), "uniform").pvalue > 0.001
    table = np.corrcoef(flat[:, :20].numpy().T)  # neighbouring places of a window
    assert np.abs(table - np.eye(20)).max() < 0.15
    other = random_numbers.uniform(
        random_numbers.window_keys(8, torch.arange(1000), torch.zeros(1000, dtype=torch.int64), 0)[:, None],
        torch.arange(640),
    )
    assert abs(np.corrcoef(flat.flatten().numpy(), other.flatten().numpy())[0, 1]) < 0.01
    assert (
        stats.kstest(
            random_numbers.normal(keys[:, None], random_numbers.scrambled(torch.arange(640))).flatten().numpy(), "norm"
        ).pvalue
        > 0.001
    )
    assert torch.isfinite(random_numbers.normal(keys[:, None], random_numbers.scrambled(torch.arange(640)))).all()


def test_streams_of_purposes_and_epochs_differ():
    key = torch.arange(100)
    found = {
        tuple(random_numbers.window_keys(seed, key, torch.full_like(key, epoch), purpose).tolist())
        for seed in (0, 1)
        for epoch in (0, 1, 2)
        for purpose in range(4)
    }
    assert len(found) == 24


def test_schedule_is_a_line_and_a_cosine():
    schedule = Schedule(1.0, 0.1, 10, 110)
    assert [schedule(step) for step in (0, 4, 9)] == pytest.approx([0.1, 0.5, 1.0])
    assert schedule(10) == pytest.approx(1.0)
    assert schedule(60) == pytest.approx(0.1 + 0.9 * 0.5)
    assert schedule(85) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(0.75 * math.pi)))
    assert schedule(110) == schedule(500) == pytest.approx(0.1)


def test_the_paper_stops_at_30_of_the_100_epochs_that_the_cosine_spans():
    table, order = PretrainConfig(), Order(0, [81_920], 4096)
    length = plan_length(
        order, table.peak_lr, table.min_lr, table.max_epochs, table.stop_epoch, table.warmup_epochs, None
    )
    assert (length.steps, length.schedule.warmup, length.schedule.span, length.epoch) == (600, 60, 2000, 20)
    assert 0.5 < length.schedule(599) / table.peak_lr < 0.9
    by_steps = plan_length(order, table.peak_lr, table.min_lr, 100, 30, 3, 500)
    assert (by_steps.steps, by_steps.schedule.warmup, by_steps.schedule.span) == (500, 50, 500)
    assert by_steps.schedule(500) == pytest.approx(table.min_lr)


@pytest.mark.parametrize("style", ["simmim", "vitmae"])
def test_matrices_decay_and_nothing_else(style):
    model = MaskedCerebro(small(), preset("tiny").objective.__class__(style=style))
    groups = group_parameters(model, 0.05)
    decayed = {name for g in groups if g.decay for name in g.names}
    every = {name for g in groups for name in g.names}
    assert every == {name for name, p in model.named_parameters() if p.requires_grad}
    for name in every:
        last = name.rsplit(".", 1)[-1]
        is_matrix = last == "weight" and "norm" not in name
        assert (name in decayed) == is_matrix, name
    assert {"encoder.positions", "encoder.electrodes", "encoder.mask_token"} <= every - decayed


def test_layers_learn_slower_the_lower_they_are():
    model = Cerebro(2, config=small())
    table = FinetuneConfig()
    factor = {name: g.factor for g in group_parameters(model, 0.05, table.layer_decay, 2) for name in g.names}
    assert factor["final_layer.weight"] == factor["encoder.norm.bias"] == 1
    assert factor["encoder.blocks.1.mlp.up.weight"] == pytest.approx(0.75)
    assert factor["encoder.blocks.0.norm1.weight"] == pytest.approx(0.75**2)
    for name in ("encoder.embed.weight", "encoder.positions", "encoder.electrodes"):
        assert factor[name] == pytest.approx(0.75**3)
        assert layer_of(name, 2) == 0


@pytest.mark.parametrize("fused", [None, True])
def test_steps_of_adamw_are_torchs_bit_for_bit(fused):
    """Our subclass leaves wrappers of its methods out, and nothing else."""
    weights = []
    for own in (True, False):
        torch.manual_seed(0)
        layer = torch.nn.Linear(7, 5)
        groups = group_parameters(torch.nn.ModuleDict({"encoder": layer}), 0.1, 0.5)
        optimizer = adamw(torch.nn.ModuleDict({"encoder": layer}), groups, (0.9, 0.98), fused=fused)
        if not own:
            listed = [{**group, "lr": 0.0} for group in optimizer.param_groups]
            optimizer = torch.optim.AdamW(listed, lr=0.0, betas=(0.9, 0.98), fused=fused)
        for step in range(12):
            if step == 6:
                optimizer.load_state_dict(optimizer.state_dict())
            optimizer.zero_grad(set_to_none=True)
            layer(torch.randn(3, 7)).square().sum().backward()
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * (step + 1) * group["factor"]
            optimizer.step()
        weights.append(torch.cat([p.detach().flatten() for p in layer.parameters()]))
        assert all(not p.grad.isnan().any() for p in layer.parameters())
    assert torch.equal(*weights)
    assert weights[0].abs().sum() > 0


def test_adamw_is_torchs_with_our_groups():
    model = Cerebro(2, config=small())
    optimizer = adamw(model, group_parameters(model, 0.05, 0.5, 2), (0.9, 0.98))
    assert sum(len(g["params"]) for g in optimizer.param_groups) == sum(p.requires_grad for p in model.parameters())
    assert {g["betas"] for g in optimizer.param_groups} == {(0.9, 0.98)}
    assert {g["weight_decay"] for g in optimizer.param_groups} == {0.0, 0.05}


@pytest.mark.parametrize("line", ["{", "[" * 100_000, "[]", "7", '{"loss": 1}', '{"step": "one"}', "\udcff"])
def test_a_damaged_line_of_a_log_is_named(line, tmp_path):
    log = tmp_path / "metrics.jsonl"
    log.write_bytes(f'{{"step": 1, "loss": 2.0}}\n\n{line}\n{{"st'.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=r"line 3 of .*metrics\.jsonl is damaged; delete it"):
        read_lines(log)
    log.write_text('{"step": 1, "loss": 2.0}\n\n{"st')
    assert read_lines(log) == [{"step": 1, "loss": 2.0}]
