"""Adapters: with them and merged a model computes the same, only they and the head learn, and no file holds them."""

import copy

import pytest
import torch
from torch import nn

from cerebro_eeg import Cerebro
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.fast import eligible, packed
from cerebro_eeg.model.lora import ALPHA, LoraLinear, adapted, merged
from tiny_models import KINDS, make_windows, randomized, small, to_batch


def make(dtype=torch.float64, rank=3, **changes):
    """A plain model, and one with adapters that are not zero."""
    plain = randomized(Cerebro(2, config=small(**changes)), 1).to(dtype).eval()
    found = adapted(plain, rank, seed=5)
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for part in found.modules():
            if isinstance(part, LoraLinear):
                values = torch.randn(part.lora_b.shape, generator=generator, dtype=torch.float64) * 0.05
                part.lora_b.copy_(values)
    return plain, found


def batch_of(dtype=torch.float64):
    windows, ids = make_windows([3, 5, 2], 40)
    return to_batch([window.astype("float32" if dtype == torch.float32 else "float64") for window in windows], ids)


def merged_model(plain, found):
    again = copy.deepcopy(plain)
    again.load_state_dict(merged(found.state_dict()))
    return again


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("way", ["gradient", "inference", "packed", "stock"])
def test_adapted_and_merged_models_compute_the_same(kind, norm, dtype, most, way):
    """In all ways of computing a block: none of them may pass over an adapter."""
    plain, found = make(dtype, attention=kind, norm=norm)
    whole, batch = merged_model(plain, found), batch_of(dtype)
    with torch.set_grad_enabled(way == "gradient"), eligible.use("stock" if way == "stock" else "auto"):
        if way == "packed":
            with packed(found), packed(whole), packed(plain):
                outputs = [model(batch) for model in (found, whole, plain)]
        else:
            outputs = [model(batch) for model in (found, whole, plain)]
    size = outputs[1].abs().max()
    assert (outputs[0] - outputs[1]).abs().max() <= most * size
    assert (outputs[0] - outputs[2]).abs().max() > 1e-3 * size  # the adapters do something


def test_every_linear_layer_of_the_blocks_has_an_adapter():
    plain, found = make(depth=1, attention="two_axis")
    named = {name for name, part in found.named_modules() if isinstance(part, LoraLinear)}
    parts = ("attention.qkv", "attention.qkv_time", "attention.out", "mlp.up", "mlp.down")
    assert named == {f"encoder.blocks.0.{part}" for part in parts}
    assert not any(isinstance(part, LoraLinear) for part in plain.modules())
    for name in named:
        layer, old = found.get_submodule(name), plain.get_submodule(name)
        expected = old.weight + ALPHA / 3 * layer.lora_b @ layer.lora_a
        assert torch.allclose(merged(found.state_dict())[f"{name}.weight"], expected, rtol=0, atol=1e-15)


def test_a_new_adapter_changes_nothing_and_comes_from_its_seed():
    plain = randomized(Cerebro(2, config=small()), 1)
    first, again, other = (adapted(plain, 3, seed) for seed in (0, 0, 1))
    assert torch.equal(first(batch_of()), plain.eval()(batch_of()))
    a = "encoder.blocks.1.mlp.down.lora_a"
    assert torch.equal(first.state_dict()[a], again.state_dict()[a])
    assert not torch.equal(first.state_dict()[a], other.state_dict()[a])


def test_only_adapters_and_head_learn():
    plain, found = make()
    found.train()
    before = {name: value.clone() for name, value in found.state_dict().items()}
    learning = {name for name, parameter in found.named_parameters() if parameter.requires_grad}
    assert {name.rpartition(".")[2] for name in learning if name.startswith("encoder.")} == {"lora_a", "lora_b"}
    assert {name for name in learning if not name.startswith("encoder.")} == {"final_layer.weight", "final_layer.bias"}
    optimizer = torch.optim.AdamW([p for p in found.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        found(batch_of()).square().sum().backward()
        assert {name for name, parameter in found.named_parameters() if parameter.grad is not None} == learning
        optimizer.step()
    for name, value in found.state_dict().items():
        assert torch.equal(value, before[name]) == (name not in learning), name
    for name, value in plain.state_dict().items():  # the copy shares no memory with it
        assert torch.equal(value, before[name]), name


def test_unmerged_adapters_are_not_saved(tmp_path):
    plain, found = make()
    with pytest.raises(ConfigError, match="adapters that are not merged"):
        found.save_pretrained(tmp_path / "run")
    merged_model(plain, found).save_pretrained(tmp_path / "run")
    again = Cerebro.from_pretrained(tmp_path / "run")
    assert again.state_dict().keys() == plain.state_dict().keys()
    assert all(type(part) is not LoraLinear for part in again.modules())


@pytest.mark.parametrize("rank", [0, 13])
def test_a_rank_must_fit_the_model(rank):
    with pytest.raises(ConfigError, match=f"lora is {rank}; expected a rank from 1 to 12"):
        adapted(Cerebro(2, config=small()), rank)


def test_layers_without_bias_are_adapted():
    plain, found = make(bias=False)
    assert isinstance(found.encoder.blocks[0].mlp.up, nn.Linear)
    assert (found(batch_of()) - merged_model(plain, found)(batch_of())).abs().max() < 1e-12
