"""Our code for CPUs (short-axis attention, linear layers by oneDNN, batches in pieces) against float64 and torch."""

import copy
import dataclasses
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import cerebro_eeg
from cerebro_eeg.batch import Batch, Layout
from cerebro_eeg.config import model_config
from cerebro_eeg.fast import Residual, attention_cpu, eligible, inference_cpu, linear_layer
from cerebro_eeg.model.attention import AxisAttention, attend
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.encoder import Block, Encoder
from predict_files import edf, make_model
from tiny_models import KINDS, make_windows, randomized, small, to_batch

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs a torch with oneDNN")


@pytest.fixture(autouse=True)
def ours():
    """Set the switch to its default for every test."""
    with eligible.use("auto"):
        yield


class Seen(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[func.name().split(".")[0]] += 1
        return func(*args, **(kwargs or {}))


def worst(found, expected):
    """The largest error, relative to the largest value."""
    return ((found.double() - expected.double()).abs().max() / expected.double().abs().max()).item()


# ---- attention along a short axis ----------------------------------------------------------------------------------


def exact(qkv_RND, heads, across, width):
    """Attention and its gradient in float64 by the stock kernels."""
    x = qkv_RND.detach().double().requires_grad_()
    with eligible.use("stock"):
        layout = Layout.uniform(len(x) // width, width)
        return x, attend(x, layout, "channels" if across else "time", heads)


@pytest.mark.parametrize("across", [False, True], ids=["time", "channels"])
@pytest.mark.parametrize(("length", "heads", "dim"), [(5, 3, 16), (19, 12, 16), (20, 2, 7), (24, 2, 32), (40, 1, 1)])
def test_attention_and_its_gradient(length, heads, dim, across):
    torch.manual_seed(length)
    shape = (3 * length, 4) if across else (6, length)
    qkv_RND = (torch.randn(*shape, 3 * heads * dim) * 2).requires_grad_()
    width = length if across else 2
    assert attention_cpu.can_attend(qkv_RND, heads, length)
    out_RND = attention_cpu.attend(qkv_RND, heads, across, width)
    reference, expected = exact(qkv_RND, heads, across, width)
    assert worst(out_RND, expected) < 1e-5
    d_out = torch.randn_like(out_RND)
    out_RND.backward(d_out)
    expected.backward(d_out.double())
    assert worst(qkv_RND.grad, reference.grad) < 1e-5
    with torch.no_grad():
        assert torch.equal(attention_cpu.attend(qkv_RND, heads, across, width), out_RND)


@pytest.mark.parametrize("across", [False, True], ids=["time", "channels"])
def test_a_vectorized_jacobian(across):
    """torch then asks for all rows of the Jacobian at once: the backward pass meets batched gradients."""
    torch.manual_seed(0)
    qkv_RND = torch.randn(5, 3, 3 * 32) if across else torch.randn(2, 6, 3 * 32)
    assert attention_cpu.can_attend(qkv_RND, 2, 5 if across else 6)

    def of(qkv_RND):
        return attend(qkv_RND, Layout.uniform(1, len(qkv_RND)), "channels" if across else "time", 2)

    found = torch.autograd.functional.jacobian(of, qkv_RND, vectorize=True)
    with eligible.use("stock"):
        expected = torch.autograd.functional.jacobian(of, qkv_RND.double())
    assert worst(found, expected) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_a_vectorized_jacobian_of_the_whole_encoder(kind):
    encoder = randomized(Encoder(small(attention=kind, width=32, heads=2))).float().eval()
    windows, ids = make_windows([6, 6], 40)
    batch = to_batch(windows, ids)

    def of(signal_RT):
        return encoder(dataclasses.replace(batch, signal_RT=signal_RT)).per_window()[:, :3]

    signal_RT = batch.signal_RT.float()
    one_by_one = torch.autograd.functional.jacobian(of, signal_RT)
    assert worst(torch.autograd.functional.jacobian(of, signal_RT, vectorize=True), one_by_one) < 1e-6


@pytest.mark.parametrize("size", [7.0, 60.0, 1e4], ids=["large", "over the limit", "far over"])
def test_attention_with_scores_that_overflow(size):
    """Scores of up to 1e9, whose powers are infinite or all zero unless the largest is taken off."""
    torch.manual_seed(0)
    qkv_RND = torch.randn(4, 19, 3 * 32) * size
    qkv_RND[1] = -qkv_RND[1].abs()
    found = attention_cpu.attend(qkv_RND.requires_grad_(), 2, False, 2)
    found.sum().backward()
    # Where one key takes all, float32 scores decide; so the reference starts from those.
    q, k, v = qkv_RND.detach().unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
    expected = (torch.softmax((q @ k.mT).double() / 4, -1) @ v.double()).transpose(1, 2).flatten(2)
    assert worst(found, expected) < 1e-4
    assert qkv_RND.grad.isfinite().all()


def test_a_negative_score_everywhere_is_no_zero_sum():
    """All powers underflow in float32, but the softmax still sums to one."""
    qkv_RND = torch.cat([torch.full((1, 8, 16), 30.0), torch.full((1, 8, 16), -30.0), torch.ones(1, 8, 16)], -1)
    assert torch.equal(attention_cpu.attend(qkv_RND, 1, False, 1), torch.ones(1, 8, 16))


def test_a_key_of_weight_zero_needs_no_second_softmax():
    """A score far below all others has the power zero, but the sums are in range, so one softmax suffices."""
    torch.manual_seed(0)
    qkv_RND = torch.cat([torch.ones(1, 8, 16), torch.randn(1, 8, 16) * 0.1, torch.randn(1, 8, 16)], -1)
    qkv_RND[0, 3, 16:32] = -500
    with Seen() as seen:
        found = attention_cpu.attend(qkv_RND, 1, False, 1)
    assert seen.names["aten::exp2_"] == 1
    assert worst(found, exact(qkv_RND, 1, False, 1)[1]) < 1e-6


def test_nan_stays_in_its_sequence():
    qkv_RND = torch.randn(3, 8, 3 * 16)
    qkv_RND[1, 2] = torch.nan
    found = attention_cpu.attend(qkv_RND, 1, False, 1)
    assert found[1].isnan().all()
    assert found[[0, 2]].isfinite().all()


def test_the_rule_of_attention():
    def suits(length, heads=2, dim=16, dtype=torch.float32):
        return attention_cpu.can_attend(torch.zeros(3, 7, 3 * heads * dim, dtype=dtype), heads, length)

    assert [suits(n) for n in (4, 5, 40, 41)] == [False, True, True, False]
    assert [suits(n, dim=32) for n in (3, 4, 24, 25)] == [False, True, True, False]
    assert [suits(20, dim=d) for d in (32, 33)] == [True, False]
    assert not suits(20, dtype=torch.float64)
    assert not attention_cpu.can_attend(torch.zeros(0, 7, 96), 2, 20)
    assert not attention_cpu.can_attend(torch.zeros(3, 7, 96, device="meta"), 2, 20)
    with torch.autocast("cpu", torch.bfloat16):
        assert not suits(20)
    plain = []
    torch.func.vmap(lambda x: (plain.append(eligible.eager_on_cpu(x)), x)[1])(torch.zeros(2, 3))
    with torch.autograd.forward_ad.dual_level():
        plain.append(eligible.eager_on_cpu(torch.zeros(2)))
    assert plain == [False, False]


# ---- linear layers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("keep", [False, True], ids=["as it is", "packed"])
def test_linear_layers(gelu, bias, keep):
    torch.manual_seed(0)
    layer, x = nn.Linear(24, 40, bias=bias), torch.randn(5, 7, 24)
    expected = copy.deepcopy(layer).double()(x.double())
    expected = functional.gelu(expected) if gelu else expected
    with torch.no_grad(), linear_layer.packed(layer if keep else nn.Identity()), Seen() as seen:
        found = linear_layer.linear(layer, x, gelu=gelu)
    assert seen.names == {"mkldnn::_linear_pointwise": 1}
    assert worst(found, expected) < 1e-6


def test_packed_weights_that_change_are_noticed():
    layer, other, x = nn.Linear(16, 16), nn.Linear(16, 16), torch.randn(3, 16)
    with torch.no_grad(), linear_layer.packed(layer):
        assert worst(linear_layer.linear(layer, x), layer(x)) < 1e-6
        layer.load_state_dict(other.state_dict())
        assert worst(linear_layer.linear(layer, x), other(x)) < 1e-6
        rounded = copy.deepcopy(layer).half().float()
        assert worst(rounded(x), layer(x)) > 1e-5
        layer.half().float()
        assert worst(linear_layer.linear(layer, x), rounded(x)) < 1e-6
        layer.load_state_dict(other.state_dict())
        layer.weight = nn.Parameter(-other.weight)
        assert worst(linear_layer.linear(layer, x), -(other(x) - other.bias) + other.bias) < 1e-6
    for change in (lambda: setattr(layer, "weight", nn.Parameter(other.weight * 2)), lambda: layer.half().float()):
        with torch.no_grad(), linear_layer.packed(layer):
            change()
            assert worst(linear_layer.linear(layer, x), layer(x)) < 1e-6
    assert not linear_layer._packed.get()


def test_linear_layers_that_run_themselves():
    """A gradient, a hook, another class or forward or precision, stock kernels, no rows: the layer is simply called."""

    class Other(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    def names(layer, x):
        with Seen() as seen:
            linear_layer.linear(layer, x)
        return set(seen.names)

    ours, layer, x = "mkldnn::_linear_pointwise", nn.Linear(8, 8), torch.randn(2, 8)
    assert ours not in names(layer, x)
    assert torch.autograd.grad(linear_layer.linear(layer, x, gelu=True).sum(), layer.weight)[0].any()
    with torch.no_grad():
        assert ours in names(layer, x)
        assert ours not in names(Other(8, 8), x)
        assert ours not in names(copy.deepcopy(layer).double(), x.double())
        assert ours not in names(layer, x[:0])
        with eligible.use("stock"):
            assert ours not in names(layer, x)
        with torch.autocast("cpu", torch.bfloat16):
            assert linear_layer.linear(layer, x).dtype == torch.bfloat16
        patched = copy.deepcopy(layer)
        patched.forward = lambda x: x * 0
        assert not linear_layer.linear(patched, x).any()
        calls = []
        with nn.modules.module.register_module_forward_hook(lambda *given: calls.append(given)):
            linear_layer.linear(layer, x)
        assert len(calls) == 1
        layer.register_forward_hook(lambda *given: calls.append(given))
        linear_layer.linear(layer, x)
        assert len(calls) == 2


# ---- whole encoders ------------------------------------------------------------------------------------------------

COUNTS = {"uniform": [6] * 9, "ragged": [6, 6, 1, 8, 8, 8, 2], "one": [7]}


def whole_encoder(batch, **settings):
    """Tokens in float32 without a gradient, and in float64 by stock operators."""
    encoder = randomized(Encoder(small(width=48, **settings))).eval()
    with eligible.use("stock"), torch.no_grad():
        expected = encoder(batch)
    encoder.float()
    single = Batch(batch.signal_RT.float(), batch.channels_R2, batch.layout, batch.scale_R)
    with torch.no_grad():
        return encoder(single), expected


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("layout", COUNTS)
@pytest.mark.parametrize("kind", KINDS)
def test_encoders_of_every_kind(kind, layout, norm, monkeypatch):
    monkeypatch.setattr(inference_cpu, "PIECE", 64)
    found, expected = whole_encoder(to_batch(*make_windows(COUNTS[layout], 56)), attention=kind, norm=norm)
    assert worst(found.x_RND, expected.x_RND) < 1e-5
    assert worst(found.per_window(), expected.per_window()) < 1e-5


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("kind", KINDS)
def test_encoders_with_pads(kind, norm):
    """Pads may hold anything, and a window may be all pads: zeros come out."""
    torch.manual_seed(0)
    ids_BC2 = torch.randint(1, 300, (4, 7, 2))
    ids_BC2[0, 5:], ids_BC2[1, :2], ids_BC2[2] = 0, 0, 0
    signal_BCT = torch.randn(4, 7, 56, dtype=torch.float64) * 20
    signal_BCT[ids_BC2[..., 0] == 0] = torch.nan
    found, expected = whole_encoder(Batch.dense(signal_BCT, ids_BC2), attention=kind, norm=norm)
    assert worst(found.x_RND, expected.x_RND) < 1e-5
    assert not found.x_RND[(ids_BC2[..., 0] == 0).flatten()].any()


def test_the_small_preset_at_its_own_size():
    torch.manual_seed(0)
    encoder = Encoder("small").eval()
    ids = torch.stack([torch.arange(1, 20), torch.zeros(19, dtype=torch.int64)], 1)
    batch = Batch.dense(torch.randn(2, 19, 1280) * 20, ids)
    with torch.inference_mode():
        found = encoder(batch).x_RND
        with eligible.use("stock"):
            expected = encoder(batch).x_RND
        with linear_layer.packed(encoder):
            again = encoder(batch).x_RND
    assert worst(found, expected) < 1e-5
    assert worst(again, expected) < 1e-5
    assert model_config("small").width == found.shape[-1]


# ---- blocks without their modules ----------------------------------------------------------------------------------


class Louder(nn.Linear):
    """A layer such as an adapter puts in place of another."""

    def forward(self, x):
        return super().forward(x) * 3


def another_layer(block):
    layer = block.mlp.up
    block.mlp.up = Louder(layer.in_features, layer.out_features)
    block.mlp.up.load_state_dict(layer.state_dict())


def another_forward(part):
    def change(block):
        module = block.get_submodule(part)
        forward = module.forward
        module.forward = lambda *given: forward(*given) * 3

    return change


def another_class(block):
    block.attention.__class__ = type("Other", (AxisAttention,), {"forward": lambda self, x, *given: x * 3})


def a_compiled_block(block):
    block._compiled_call_impl = lambda stream, *given: Residual(stream.total() * 3)


def a_hook(block):
    block.norm2.register_forward_hook(lambda module, given, out: out * 3)


CHANGES = {
    "layer": another_layer,
    "qkv": another_forward("attention.qkv"),
    "norm": another_forward("norm2"),
    "mlp": another_forward("mlp"),
    "attention": another_class,
    "compiled": a_compiled_block,
    "hook": a_hook,
}


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_block_runs_itself(change, number):
    encoder = randomized(Encoder(small(width=48))).float().eval()
    batch = to_batch(*make_windows([6] * 3, 56))
    batch = Batch(batch.signal_RT.float(), batch.channels_R2, batch.layout, batch.scale_R)
    with torch.no_grad():
        before = encoder(batch).x_RND
        change(encoder.blocks[number])
        found = encoder(batch).x_RND
        with eligible.use("stock"):
            expected = encoder(batch).x_RND
    assert worst(found, expected) < 1e-5
    assert worst(before, expected) > 1e-2


def test_only_blocks_of_one_axis_with_pre_norm_do_without_modules(monkeypatch):
    called = []
    forward = Block.forward
    monkeypatch.setattr(Block, "forward", lambda self, *given: (called.append(self), forward(self, *given))[1])

    def modules_called(**settings):
        called.clear()
        encoder = Encoder(small(width=48, **settings)).eval()
        with torch.no_grad(), linear_layer.packed(encoder):
            encoder(Batch.dense(torch.randn(2, 5, 56), torch.randint(1, 300, (5, 2))))
        return len(called)

    assert [modules_called(attention=kind) for kind in KINDS] == [0, 0, 2, 2]
    assert modules_called(norm="post") == 2


def test_tokens_that_go_in_are_not_changed():
    encoder, layout = Encoder(small(width=48)).eval(), Layout.uniform(2, 5)
    x_RND = torch.randn(10, 7, 48)
    given = x_RND.clone()
    with torch.no_grad():
        found = [encoder.run(x_RND, layout, layer=layer) for layer in (0, 1, None)]
    assert torch.equal(x_RND, given)
    assert torch.equal(found[0], given)
    assert worst(found[1], found[2]) > 1e-2


def test_the_verbs_pack_their_weights(tmp_path, monkeypatch):
    model = Cerebro.from_pretrained(make_model(tmp_path / "model"))
    seen, encode = [], Cerebro.encode

    def counting(self, *given, **named):
        seen.append(len(linear_layer._packed.get()))
        return encode(self, *given, **named)

    monkeypatch.setattr(Cerebro, "encode", counting)
    cerebro_eeg.embed(edf(tmp_path / "a.edf"), model)
    cerebro_eeg.predict(edf(tmp_path / "a.edf"), model)
    linear_layers = sum(type(part) is nn.Linear for part in model.modules())
    assert set(seen) == {linear_layers}
    assert len(seen) >= 2
    assert not linear_layer._packed.get()


# ---- pieces --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [[3] * 10, [3, 3, 5, 0, 5, 5, 1], [40], [0, 0], []])
def test_pieces_are_whole_windows_of_equal_width_in_order(counts, monkeypatch):
    monkeypatch.setattr(inference_cpu, "PIECE", 24)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    layout = Layout.ragged(counts)
    sizes = []

    def run(x_RND, its_layout):
        assert len(x_RND) == its_layout.windows * its_layout.width > 0
        sizes.append(x_RND.shape[0] * x_RND.shape[1])
        return x_RND + 1

    x_RND = torch.randn(sum(counts), 4, 2)
    assert torch.equal(inference_cpu.by_pieces(run, x_RND, layout), x_RND + 1 if sum(counts) else x_RND)
    widest = max(counts, default=0) * 4
    assert all(size <= max(24, widest) for size in sizes)


def test_a_hook_anywhere_is_seen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    assert not eligible.watched(model)
    model[1][0].register_forward_pre_hook(lambda module, given: None)
    assert eligible.watched(model)
    assert not eligible.watched(model[0])
    model[0].register_module("missing", None)
    assert not eligible.watched(model[0])


def test_the_encoder_takes_this_path():
    """oneDNN computes all linear layers, in pieces, without stock attention; but not with a hook or a gradient."""
    encoder, batch = Encoder("small").eval(), Batch.dense(torch.randn(6, 19, 1280), torch.randint(1, 300, (19, 2)))
    with torch.no_grad(), Seen() as seen:
        encoder(batch)
    pieces = len(list(inference_cpu._pieces(batch.layout, 20)))
    assert seen.names["mkldnn::_linear_pointwise"] == 1 + 8 * 4 * pieces
    assert not [name for name in seen.names if "scaled_dot_product" in name or "addmm" in name]
    shapes = []
    encoder.blocks[3].register_forward_pre_hook(lambda module, given: shapes.append(given[0].x_RND.shape[0]))
    with torch.no_grad():
        encoder(batch)
    assert shapes == [6 * 19]
    with Seen() as seen:
        encoder(batch)
    assert not seen.names["mkldnn::_linear_pointwise"]
