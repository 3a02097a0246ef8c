"""Adapters of peft: they train, no path of ours computes without them, and merged they are a plain checkpoint."""

import copy

import pytest
import torch
from test_cerebro import noise

from cerebro_eeg import Cerebro, errors
from cerebro_eeg.fast import eligible, packed
from cerebro_eeg.model.encoder import Block
from tiny_models import small

peft = pytest.importorskip("peft", reason="needs peft")
# Of peft and of the packages that it imports; our own warnings would also be about arrays, and there are none.
pytestmark = pytest.mark.filterwarnings("ignore")

NAMES = ["Fp1", "Cz", "O2", "F7-T3"]
LAYERS = ["qkv", "out", "up", "down"]
KINDS = {
    "lora": lambda on: peft.LoraConfig(r=3, target_modules=on, modules_to_save=["final_layer"]),
    "rslora": lambda on: peft.LoraConfig(r=3, target_modules=on, use_rslora=True),
    "dora": lambda on: peft.LoraConfig(r=3, target_modules=on, use_dora=True, modules_to_save=["final_layer"]),
    "ia3": lambda on: peft.IA3Config(
        target_modules=on, feedforward_modules=[n for n in on if n == "down"], modules_to_save=["final_layer"]
    ),
    "adalora": lambda on: peft.AdaLoraConfig(init_r=3, target_r=2, total_step=10, target_modules=on),
    "oft": lambda on: peft.OFTConfig(oft_block_size=2, target_modules=on),
    "loha": lambda on: peft.LoHaConfig(r=3, target_modules=on),
    "lokr": lambda on: peft.LoKrConfig(r=3, target_modules=on),
    "vera": lambda on: peft.VeraConfig(r=3, target_modules=on),
}
USED = ["lora", "dora", "ia3"]
"""What benchmarks use, and what we promise."""


def plain(depth=4):
    torch.manual_seed(0)
    return Cerebro(3, ch_names=NAMES, config=small(width=48, depth=depth)).eval()


def windows(count=6):
    return torch.tensor(noise(count, 4))


def wrap(model, kind, on, seed=1):
    """The model with adapters that are far from doing nothing."""
    wrapped = peft.get_peft_model(copy.deepcopy(model), KINDS[kind](on))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if parameter.requires_grad and "final_layer" not in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return wrapped.eval()


def error(found, expected):
    return ((found - expected).abs().max() / expected.abs().max()).item()


def merged(wrapped):
    """The adapters in the weights of plain layers, as peft itself merges them."""
    found = copy.deepcopy(wrapped).merge_and_unload()
    assert not any("peft" in type(part).__module__ for part in found.modules())
    return found


@pytest.mark.parametrize("on", [*([name] for name in LAYERS), LAYERS, ["embed"]], ids=str)
@pytest.mark.parametrize("kind", USED)
def test_no_path_computes_without_the_adapters(kind, on):
    model, x = plain(), windows()
    wrapped = wrap(model, kind, on)
    with torch.no_grad(), eligible.use("stock"):
        expected, without = merged(wrapped)(x), model(x)
        tokens = merged(wrapped)(x, return_features=True)["tokens"].numpy()
    assert error(without, expected) > 1e-3  # so a path without them would show
    assert error(wrapped(x), expected) < 1e-5  # with gradients
    inner = wrapped.get_base_model()
    with torch.no_grad():
        assert error(wrapped(x), expected) < 1e-5  # the fast path of a CPU
        with packed(inner):
            assert error(wrapped(x), expected) < 1e-5
        assert error(inner.captured(len(x), x.shape[2])(x.numpy()), expected) < 1e-5
        assert error(merged(wrapped)(x), expected) < 1e-5
    found = inner.embed(x.numpy(), level="token")
    assert abs(found - tokens).max() < 1e-5 * abs(tokens).max()
    with wrapped.disable_adapter(), torch.no_grad():
        assert error(wrapped(x), without) < 1e-5


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(USED)))
def test_other_adapters_are_not_passed_over_either(kind):
    model, x = plain(), windows()
    wrapped = wrap(model, kind, LAYERS)
    with torch.no_grad():
        with eligible.use("stock"):
            expected, without = wrapped(x), model(x)
        assert error(without, expected) > 1e-3
        assert error(wrapped(x), expected) < 1e-5
        with packed(wrapped.get_base_model()):
            assert error(wrapped(x), expected) < 1e-5


def test_norms_that_peft_trains_are_the_ones_that_are_used():
    model, x = plain(), windows()
    wrapped = peft.get_peft_model(copy.deepcopy(model), peft.LNTuningConfig(target_modules=["norm1", "norm2"]))
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if parameter.requires_grad:
                parameter.add_(torch.linspace(-0.5, 0.5, len(parameter)))
                assert "ln_tuning_layers" in name
        with eligible.use("stock"):
            expected, without = wrapped(x), model(x)
        assert error(without, expected) > 1e-3
        assert error(wrapped(x), expected) < 1e-5
        assert error(merged(wrapped)(x), expected) < 1e-5


@pytest.mark.parametrize("kind", USED)
def test_compiled_code_has_the_adapters(kind):
    wrapped, x = wrap(plain(2), kind, ["blocks.0.mlp.up", "blocks.1.attention.out"]), windows()
    found = torch.compile(wrapped, backend="eager")(x)
    with torch.no_grad(), eligible.use("stock"):
        assert error(found.detach(), merged(wrapped)(x)) < 1e-5
    torch._dynamo.reset()


def test_blocks_without_adapters_stay_on_the_fast_path(monkeypatch):
    called, forward = [], Block.forward
    monkeypatch.setattr(Block, "forward", lambda self, *given: (called.append(self), forward(self, *given))[1])
    model, x = plain(), windows()
    wrapped = wrap(model, "dora", ["blocks.1.mlp.up"])
    with torch.no_grad(), packed(wrapped.get_base_model()):
        wrapped(x)
    assert called == [wrapped.get_base_model().encoder.blocks[1]]
    called.clear()
    again = merged(wrapped)
    with torch.no_grad(), packed(again):
        again(x)
    assert called == []


@pytest.mark.parametrize("kind", USED)
def test_adapters_train_and_become_a_plain_checkpoint(kind, tmp_path):
    """The way of docs/python.md: wrap, train, merge, save; another program sees weights without adapters."""
    model, x, y = plain(), windows(12), torch.arange(12) % 3
    wrapped = peft.get_peft_model(model, KINDS[kind](LAYERS)).train()
    before = {name: value.clone() for name, value in wrapped.state_dict().items()}
    learning = {name for name, parameter in wrapped.named_parameters() if parameter.requires_grad}
    assert (
        0
        < sum(p.numel() for p in wrapped.parameters() if p.requires_grad)
        < 0.3 * sum(p.numel() for p in model.parameters())
    )
    optimizer = torch.optim.AdamW([p for p in wrapped.parameters() if p.requires_grad], lr=0.02)
    losses = []
    for _ in range(8):
        loss = torch.nn.functional.cross_entropy(wrapped(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    changed = {name for name, value in wrapped.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == learning
    assert wrapped.get_base_model().training_record.electrode_windows["O2"] == 8 * 12

    wrapped.eval()
    expected = wrapped(x).detach()
    with pytest.raises(errors.ConfigError, match=r"adapters that are not merged .* merge_and_unload\(\)"):
        wrapped.get_base_model().save_pretrained(tmp_path / "own")
    wrapped.save_pretrained(tmp_path / "adapters")  # of peft: the adapters alone
    whole = wrapped.merge_and_unload()
    assert whole is wrapped.get_base_model()
    whole.save_pretrained(tmp_path / "own")
    found = Cerebro.from_pretrained(tmp_path / "own", ch_names=NAMES)
    assert found.load_report.exact
    assert not found.load_report.unexpected
    assert error(found(x).detach(), expected) < 1e-5
    assert found.training_record == whole.training_record
    assert set(found.state_dict()) == set(plain().state_dict())

    again = peft.PeftModel.from_pretrained(plain(), tmp_path / "adapters").eval()  # beside the weights from before
    assert error(again(x).detach(), expected) < 1e-5


def test_names_of_a_call_go_through_peft():
    model, x = plain(), windows()
    wrapped = wrap(model, "lora", LAYERS)
    other = ["O1", "Oz", "Pz", "Cz"]
    expected = wrapped.get_base_model()(x, ch_names=other)
    assert torch.equal(wrapped(x, ch_names=other), expected)
    assert not torch.allclose(expected, wrapped(x))
