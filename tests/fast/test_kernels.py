"""Kernels of attention, GELU, norms and narrow layers, on Triton's interpreter and on a GPU; operators and rules."""

import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from gluon_cases import compiled_for_hopper, spilled
from kernel_cases import (
    BOUND,
    BiasesInNorms,
    as_exact,
    both_ways,
    check,
    check_block,
    check_mlp,
    check_narrow,
    check_noise,
    check_norm,
    check_norm_without_a_sum,
    check_turns,
    run_exactly,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn import LayerNorm, Linear
from torch.nn.utils import parametrizations, prune
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from cerebro_eeg.batch import Batch, Layout
from cerebro_eeg.config import ObjectiveConfig, preset
from cerebro_eeg.errors import InputError
from cerebro_eeg.fast import Residual, eligible, hopper, inference_cuda, linear_layer, mlp_launch, mlp_layer, norm
from cerebro_eeg.fast import attention as short_axis
from cerebro_eeg.fast.inference_cuda import CudaBlock
from cerebro_eeg.fast.norm import MissingBiases
from cerebro_eeg.model.attention import ATTENTIONS, Attention, attend
from cerebro_eeg.model.attention import KINDS as MAKERS
from cerebro_eeg.model.encoder import Block, Encoder
from cerebro_eeg.model.masked import MaskedCerebro
from tiny_models import KINDS, randomized, small

LAYOUT = Layout.uniform(2, 3)


@pytest.fixture(autouse=True)
def ours():
    """Set the switch to its default for every test."""
    with eligible.use("auto"):
        yield


PARTS = ("mlp", "norm", "narrow or block or token", "short_axes or ragged or pads or scores")


def run_cases(*choice):
    """Run cases of ``kernel_cases.py`` on the interpreter."""
    pytest.importorskip("triton", reason="needs Triton, which comes with torch for CUDA")
    cases = Path(__file__).with_name("kernel_cases.py")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *choice, str(cases)]
    done = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize("part", range(len(PARTS) + 1))
def test_the_kernels_on_the_interpreter(part):
    """Run the cases in five parts, which two processes can share; the last part has all cases without another part."""
    names = f"({PARTS[part]})" if part < len(PARTS) else "test"
    run_cases("-k", " and not ".join([names, *(f"({earlier})" for earlier in PARTS[:part])]))


@pytest.mark.soak
def test_more_sizes_of_the_kernels_on_the_interpreter():
    run_cases("-m", "soak", "--timeout", "0")


def test_the_rule():
    """CPU, float64, long axes and wide heads take the stock path, and so does everything inside ``use("stock")``."""
    cuda = torch.device("cuda")

    class Given:  # what the rule looks at; a CUDA tensor needs a GPU
        is_cuda = True

        def __init__(self, dim: int, dtype: torch.dtype) -> None:
            self.shape, self.dtype, self.device = (4, 5, 3 * 2 * dim), dtype, cuda

    def suits(length: int, dim: int = 16, dtype: torch.dtype = torch.bfloat16) -> bool:
        return short_axis.can_attend(Given(dim, dtype), 2, length)  # type: ignore[arg-type]

    assert suits(1)
    assert suits(256, 64)
    assert not suits(257)
    assert suits(128, 128)
    assert not suits(129, 128)
    assert not suits(20, 129)
    assert suits(64, 64, torch.float32)
    assert not suits(65, 64, torch.float32)
    assert not suits(20, 16, torch.float64)
    assert not short_axis.can_attend(torch.zeros(4, 5, 96), 2, 5)
    assert short_axis.fits(torch.bfloat16, 4096, 512, 8, 256)
    assert not short_axis.fits(torch.bfloat16, 8192, 512, 8, 256)  # more than 2^31 numbers from row to row
    for choice in ("stock", "stock attention"):
        with eligible.use(choice):
            assert not suits(20)
    assert suits(20)


def test_attention_on_amd_is_stock(monkeypatch):
    class Given:
        is_cuda, dtype, shape = True, torch.bfloat16, (4, 5, 96)

    assert short_axis.can_attend(Given(), 2, 5)
    monkeypatch.setattr(torch.version, "hip", "6")
    assert not short_axis.can_attend(Given(), 2, 5)


def test_without_triton_everything_is_stock(monkeypatch):
    class Given:
        is_cuda, dtype, shape = True, torch.bfloat16, (4, 5, 96)

    assert short_axis.can_attend(Given(), 2, 5)
    assert eligible.half_on_cuda(Given(), Linear(4, 8), Linear)
    monkeypatch.setattr(eligible, "TRITON", False)
    assert not short_axis.can_attend(Given(), 2, 5)
    assert not eligible.half_on_cuda(Given(), Linear(4, 8), Linear)


def test_the_rule_of_layers():
    """torch computes on a CPU, in float32, with stock kernels, and layers that have a hook or were replaced."""

    class Given:
        is_cuda = True

        def __init__(self, dtype: torch.dtype) -> None:
            self.dtype = dtype

    given, linear = Given(torch.bfloat16), Linear(4, 8)
    assert eligible.half_on_cuda(given, linear, Linear)
    assert eligible.half_on_cuda(Given(torch.float16), linear, Linear)
    assert not eligible.half_on_cuda(Given(torch.float32), linear, Linear)
    assert not eligible.half_on_cuda(torch.zeros(2, 4, dtype=torch.bfloat16), linear, Linear)
    with eligible.use("stock attention"):
        assert eligible.half_on_cuda(given, linear, Linear)
    with eligible.use("stock"):
        assert not eligible.half_on_cuda(given, linear, Linear)
    assert not eligible.half_on_cuda(given, torch.nn.Sequential(linear), Linear)
    linear.register_forward_hook(lambda module, given, found: None)
    assert not eligible.half_on_cuda(given, linear, Linear)


def test_double_precision_is_left_alone_as_autocast_does():
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        found = [eligible.compute_dtype(torch.zeros(1, dtype=dtype)) for dtype in (torch.float32, torch.float64)]
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])
    assert found == [torch.bfloat16, torch.float64]


def test_layers_that_run_themselves():
    """Hooks of all kinds and of all modules, another forward, weights that are no tensors of numbers."""
    linear = Linear(4, 4)
    assert eligible.plain(linear, Linear)
    with torch.nn.modules.module.register_module_forward_hook(lambda module, given, found: None):
        assert not eligible.plain(linear, Linear)
    for watch in (
        linear.register_forward_hook,
        linear.register_forward_pre_hook,
        linear.register_full_backward_hook,
        linear.register_full_backward_pre_hook,
    ):
        with watch(lambda *given: None):
            assert not eligible.plain(linear, Linear)
    for change in (parametrizations.weight_norm, lambda layer: prune.l1_unstructured(layer, "weight", 0.5)):
        changed = Linear(4, 4)
        change(changed)
        assert not eligible.plain(changed, Linear)
    adapted, quantised = Linear(4, 4), Linear(4, 4)
    adapted.forward = lambda x: x
    quantised.weight = torch.nn.Parameter(TwoTensor(linear.weight.detach(), linear.weight.detach()))
    assert type(quantised) is Linear
    assert not eligible.plain(adapted, Linear)
    assert not eligible.plain(quantised, Linear)
    assert eligible.plain(linear, Linear)


def test_the_rule_of_layers_compiles():
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = Linear(4, 4)

        def forward(self, x):
            return x + 1 if eligible.plain(self.linear, Linear) else x

    torch._dynamo.reset()
    layer, x = Layer(), torch.zeros(1)
    assert torch.compile(layer, backend="eager", fullgraph=True)(x) == 1
    assert torch.export.export(layer, (x,)).module()(x) == 1


def test_derivatives_forward_and_transforms_take_the_stock_path():
    """Through our operators a forward-mode derivative would be zero without an error, and ``torch.func.grad`` fails."""

    class Given:
        is_cuda, dtype, shape = True, torch.bfloat16, (4, 5, 96)

    linear, plain = Linear(4, 8), LayerNorm(96)

    def suits() -> list[bool]:
        attention = short_axis.can_attend(Given(), 2, 5)
        return [attention, eligible.half_on_cuda(Given(), linear, Linear), norm.can_fuse(Given(), Given(), plain)]

    assert all(suits())
    seen = []
    for transform in (torch.func.grad, torch.func.vmap):
        transform(lambda x: (seen.extend(suits()), x.sum())[1])(torch.ones(2))
    with forward_ad.dual_level():
        seen += suits()
    assert not any(seen)
    assert len(seen) == 9


@pytest.mark.parametrize("in_registers", [True, False])
def test_tiles_hold_the_axis(in_registers, monkeypatch):
    monkeypatch.setattr(short_axis, "turns_in_registers", lambda: in_registers)
    for length in range(1, 257):
        for dim in (16, 24, 48, 64, 128):
            for exact in (False, True):
                for backward in (False, True):
                    t = short_axis.tile(length, 12, dim, backward, exact)
                    assert length <= t.slots < 2 * length
                    assert t.slots * t.pack >= 16
                    assert t.slots == 48 or t.slots * t.pack % t.queries == 0
                    assert t.queries in (16, 32, 64, 128)
                    assert t.slots * t.pack % t.part == 0
                    assert t.part & (t.part - 1) == 0
                    assert t.slots != 48 or length > 32  # the kernels do not look which of the first 32 are there
                    assert dim <= t.dim + t.rest < max(17, 2 * dim)
                    assert t.rest < t.dim
                    assert t.rest == 0 or (backward and t.warps == 1 and t.slots in (32, 48))
                    assert 12 % (t.group * t.turns) == 0
                    assert t.group == 1 or t.dim == dim
                    assert in_registers or not (t.in_registers or t.rest)
                    assert not t.in_registers or (t.keys_first and t.warps == t.group == 1)
                    assert not t.in_registers or t.part == t.queries in (16, 32)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")
def test_the_operator_is_sound():
    """Schema, fake tensors and autograd registration, as torch checks them; no memory is touched."""
    qkv = torch.randn(0, 5, 96, requires_grad=True)
    arguments = (qkv, 2, True, 3, torch.tensor([0, 0]), None, None)
    for keep in (True, False):
        torch.library.opcheck(short_axis.attend_op, (*arguments, keep))
    sizes = (0, 5, 8), (16, 8), (16,), (8, 16), (8,)
    x, up_HD, up_H, down_DH, down_D = (torch.randn(size, requires_grad=True) for size in sizes)
    torch.library.opcheck(mlp_layer.mlp_op, (x, up_HD, up_H, down_DH, down_D))
    torch.library.opcheck(mlp_layer.mlp_op, (x, up_HD, None, down_DH, None))
    torch.library.opcheck(mlp_layer.hidden_layer, tuple(given.detach() for given in (x, up_HD, up_H)))
    torch.library.opcheck(mlp_layer.mlp_backward, (x.detach(), down_DH.detach(), torch.randn(0, 5, 16)))
    scale = torch.randn(8, requires_grad=True)
    torch.library.opcheck(norm.add_norm_op, (x, x.detach(), scale, scale.detach(), 1e-5, True, None, None))
    once = (*x.detach().expand(2, 0, 5, 8), *scale.detach().expand(2, 8))
    torch.library.opcheck(norm.add_norm_op, (*once, 1e-5, False, None, None))
    torch.library.opcheck(norm.add_norm_op, (*once, 1e-5, False, scale.detach(), None))
    pending_bias = torch.randn(8, requires_grad=True)
    torch.library.opcheck(norm.add_norm_op, (x, x.detach(), scale, scale.detach(), 1e-5, True, pending_bias, None))
    torch.library.opcheck(
        norm.add_norm_op, (x, x.detach(), scale, scale.detach(), 1e-5, True, pending_bias.detach(), None)
    )
    kept, factor_R = torch.randn(2, 0, 5), torch.ones(0)
    for bias in (None, pending_bias, pending_bias.detach()):
        for branch in (x, x.detach()):
            given = x, branch, scale, scale.detach(), 1e-5, True, bias, factor_R
            torch.library.opcheck(norm.add_norm_op, given)
    torch.library.opcheck(norm.add_norm_op, (*once, 1e-5, False, scale.detach(), factor_R))
    for pending in (False, True):
        given = *x.detach().expand(3, 0, 5, 8), scale.detach(), kept, pending
        for its in (None, factor_R):
            torch.library.opcheck(norm.add_norm_backward, (*given, its))
    x, weight = torch.randn(0, 5, 192, requires_grad=True), torch.randn(576, 192, requires_grad=True)
    torch.library.opcheck(linear_layer.narrow_linear, (x, weight, torch.randn(576, requires_grad=True)))
    torch.library.opcheck(linear_layer.narrow_linear_backward, (torch.randn(0, 5, 576), x.detach()))


def test_a_second_derivative_is_refused_and_not_zero():
    """A graph of gradients may be built, but a backward pass through our kernels in it raises an error."""
    x, scale, weight, wide = (torch.randn(size, requires_grad=True) for size in ((0, 5, 8), 8, (16, 8), (0, 5, 192)))
    narrow_weight, bias = torch.randn(192, 192, requires_grad=True), torch.randn(192, requires_grad=True)
    outs = (
        (x, norm.add_norm_op(x, None, scale, scale.detach(), 1e-5, True, None, None)[1]),
        (x, mlp_layer.mlp_op(x, weight, None, weight.T, None)[0]),
        (wide, short_axis.attend_short_axis(wide, 2, False, 5)),
        (narrow_weight, linear_layer.narrow_linear(wide, narrow_weight, bias)),
    )
    for given, out in outs:
        (gradient,) = torch.autograd.grad((out * out).sum(), given, create_graph=True)
        with pytest.raises(InputError, match="second derivative"):
            gradient.sum().backward()


def test_the_rule_of_narrow_layers(monkeypatch):
    """192 inputs, a multiple of it as outputs, a bias, a weight that learns, gradients, and Hopper."""

    class Given:
        is_cuda, dtype, device = True, torch.bfloat16, torch.device("cuda", 1)

    given, plain, asked = Given(), Linear(192, 576), []
    assert not hopper.is_hopper(torch.device("cuda")) or torch.cuda.is_available()
    monkeypatch.setattr(hopper, "is_hopper", lambda device: asked.append(device) is None)
    assert linear_layer.can_fuse_gradient(plain, given)
    assert asked == [torch.device("cuda", 1)]
    assert linear_layer.can_fuse_gradient(Linear(192, 192), given)
    for other in (
        Linear(192, 100),
        Linear(64, 192),
        Linear(384, 192),
        Linear(192, 576, bias=False),
        torch.nn.Sequential(plain),
    ):
        assert not linear_layer.can_fuse_gradient(other, given)
    plain.weight.requires_grad_(False)
    assert not linear_layer.can_fuse_gradient(plain, given)
    plain.weight.requires_grad_(True)
    with eligible.use("stock"):
        assert not linear_layer.can_fuse_gradient(plain, given)
    monkeypatch.setattr(hopper, "is_hopper", lambda device: False)
    assert not linear_layer.can_fuse_gradient(plain, given)

    monkeypatch.setattr(linear_layer, "can_fuse_gradient", lambda layer, x: True)
    x = torch.randn(2, 3, 192)
    assert "narrow_linear" in type(linear_layer.linear(plain, x, fused_gradient=True).grad_fn).__name__
    with torch.no_grad():
        torch.testing.assert_close(linear_layer.linear(plain, x, fused_gradient=True), plain(x))


@pytest.mark.parametrize(
    ("version", "hip", "wanted"),
    [((9, 0), None, True), ((8, 0), None, False), ((10, 0), None, False), ((9, 0), "6", False)],
)
def test_which_gpus_are_hopper(version, hip, wanted, monkeypatch):
    """AMD's MI200 calls itself 9.0, too."""

    class Properties:
        major, minor = version

    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    assert hopper.is_hopper(torch.device("cuda")) is wanted


def test_parts_of_the_tokens_hold_every_row_once():
    assert linear_layer.split(655_360, 132 // 3) == (44, 14_912)
    for rows in (1, 63, 64, 65, 128, 1000, 8448, 8449, 655_361):
        for most in (0, 1, 2, 44, 132):
            parts, chunk = linear_layer.split(rows, most)
            assert chunk % linear_layer.BLOCK_T == 0
            assert (parts - 1) * chunk < rows <= parts * chunk
            assert parts <= max(1, most)


SIZES = [(192, 768), *(pytest.param(n, 4 * n, marks=pytest.mark.soak) for n in (64, 256, 576, 768))]


@pytest.mark.parametrize(("width", "hidden"), SIZES)
def test_the_kernels_in_gluon_compile_for_hopper(width, hidden, tmp_path, monkeypatch):
    """Without a GPU: shared memory suffices, and next to no register is spilled to memory."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for found in compiled_for_hopper(width, mlp_launch.form(width, hidden)):
        assert found.metadata.shared <= 232_448 - 1024
        assert spilled(found.asm["cubin"], tmp_path) <= 32


def test_forms_of_gluon():
    for width in range(64, mlp_launch.WIDEST + 1, 64):
        form = mlp_launch.form(width, 4 * width)
        chunks = width // 64 // form.parts
        assert chunks * form.parts * 64 == width
        assert chunks > 1 or form.stages % 2 == 0  # each consumer has places of its own, without turns
        assert not form.shared or form.parts == 1


def test_widths_that_gluon_leaves_to_triton():
    assert mlp_launch.form(200, 800) is None
    assert mlp_launch.form(192, 700) is None
    assert mlp_launch.form(640, 640) is None
    assert mlp_launch.form(1088, 4352) is None
    few = torch.empty(5, 192)
    assert mlp_launch.by_gluon(few, 192, 768) is None


def test_tiles_of_norms_hold_a_token_in_two_blocks():
    for width in range(1, norm.MOST + 1):
        for kind in ("forward", "alone", "backward"):
            t = norm.tile(width, kind)
            first, second = t.columns
            assert first <= width <= first + second
            assert second == 1 or first + second // 2 < width  # no block is larger than needed
            assert all((x & (x - 1)) == 0 < x for x in (t.rows, t.warps, first, second))
            assert t.rows * (first + second) <= (norm.HELD * t.warps if kind == "backward" else 4096)
    assert norm.tile(192, "backward") == norm.NormTile(4, (128, 64), 1, 3, 2048)


def test_the_rule_of_norms():
    """A plain norm with weight and bias, and summands that are both in half precision."""

    class Given:
        is_cuda = True

        def __init__(self, dtype: torch.dtype = torch.bfloat16, shape: tuple[int, ...] = (4, 5, 96)) -> None:
            self.dtype, self.shape = dtype, shape

    given, plain = Given(), LayerNorm(96)
    assert norm.can_fuse(given, given, plain)
    assert not norm.can_fuse(given, Given(torch.float32), plain)
    assert not norm.can_fuse(Given(torch.float32), given, plain)
    assert not norm.can_fuse(given, Given(shape=(1, 1, 96)), plain)  # added to every token by torch
    assert not norm.can_fuse(given, given, LayerNorm(96, elementwise_affine=False))
    assert not norm.can_fuse(given, given, LayerNorm(96, bias=False))
    assert not norm.can_fuse(given, given, torch.nn.RMSNorm(96))
    with eligible.use("stock"):
        assert not norm.can_fuse(given, given, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_whose_bias_the_norm_may_add(kind):
    """Attention and its last layer must be unchanged and have no hooks."""

    class Louder(Linear):
        pass

    def made() -> Attention:
        return MAKERS[kind](small(attention=kind), 1)

    def may_defer(attention: Attention) -> bool:
        return eligible.may_defer_bias(attention, attention.out, ATTENTIONS)

    attention = made()
    assert may_defer(attention)
    with torch.nn.modules.module.register_module_forward_hook(lambda module, given, found: None):
        assert not may_defer(attention)
    for part in (attention, attention.out):
        for watch in (
            part.register_forward_hook,
            part.register_forward_pre_hook,
            part.register_full_backward_hook,
            part.register_full_backward_pre_hook,
        ):
            with watch(lambda *given: None):
                assert not may_defer(attention)
    assert may_defer(attention)
    weight = attention.out.weight.detach()
    for change in (
        lambda it: setattr(it, "forward", lambda x, *given: x),
        lambda it: setattr(it.out, "forward", lambda x: x),
        lambda it: setattr(it, "out", Louder(12, 12)),
        lambda it: setattr(it, "out", torch.nn.Sequential(it.out)),
        lambda it: setattr(it, "__class__", type("Other", (type(it),), {})),
        lambda it: setattr(it.out, "weight", torch.nn.Parameter(TwoTensor(weight, weight))),
        lambda it: parametrizations.weight_norm(it.out),
        lambda it: prune.l1_unstructured(it.out, "bias", 0.5),
        lambda it: setattr(it, "_compiled_call_impl", lambda x, *given: x),
        lambda it: setattr(it.out, "_compiled_call_impl", lambda x: x),
    ):
        attention = made()
        change(attention)
        assert not may_defer(attention)


@pytest.fixture
def biases_in_norms(monkeypatch):
    """Return which norms of a block add a bias, and whether the next block may add the last one.

    It runs on fake tensors, and layers use our operators on the CPU, too.
    """
    monkeypatch.setattr(
        eligible, "half_on_cuda", lambda x, layer, kind: eligible.ours() and eligible.plain(layer, kind)
    )

    def run(block, layout=LAYOUT, keep=None, dtype=torch.bfloat16):
        block.to(dtype)
        with FakeTensorMode(allow_non_fake_inputs=True), BiasesInNorms() as noted:
            x = torch.randn(6, 5, 12, dtype=dtype)
            left = block(Residual(x, x if block.pre else None), layout, None, keep)
        deferred = left.bias_D is not None
        if keep is not None:  # the kernel that adds the bias multiplies, too
            assert [*noted.scaled, left.factor_R is not None] == [*noted.added, deferred]
        assert not deferred or left.bias_D is block.mlp.down.bias
        return [*noted.added, deferred]

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_the_rule_of_the_biases_in_front_of_norms(kind, biases_in_norms):
    """The norm adds a bias if nothing else changes the output of the branch, and the norm is our own kernel."""
    block = Block(small(attention=kind), 1)
    assert biases_in_norms(block) == [False, True, True]
    assert biases_in_norms(block, dtype=torch.float32) == [True]
    padded = Layout.padded(torch.ones(2, 3, dtype=torch.bool))
    for keep in (None, torch.ones(2, 2)):
        assert biases_in_norms(block, keep=keep) == [False, True, True]
        assert biases_in_norms(block, padded, keep) == [False, False, True]
    with eligible.use("stock attention"):
        assert biases_in_norms(block) == [False, True, True]
    with eligible.use("stock"):
        assert biases_in_norms(block) == [False]
    seen = []
    attention, last = (block.attention, block.attention.out), (block.mlp, block.mlp.up, block.mlp.down, block)
    for part, second in [*((part, False) for part in attention), *((part, True) for part in last)]:
        with part.register_forward_hook(lambda module, given, found: seen.append(module)):
            for keep in (None, torch.ones(2, 2)):
                assert biases_in_norms(block, keep=keep) == [False, second, False]
    assert seen == [part for part in (*attention, *last) for _ in range(2)]
    with block.norm2.register_forward_hook(lambda module, given, found: None):
        assert biases_in_norms(block) == [False, False]
    assert biases_in_norms(Block(small(attention=kind, norm="post"), 1)) == [False]
    assert biases_in_norms(Block(small(attention=kind, bias=False), 1)) == [False, False, False]


def test_the_next_block_adds_no_bias_of_a_block_that_may_free_its_weights(biases_in_norms):
    """FSDP makes a block a subclass, and offloading replaces its forward; weights that they free must not be used."""

    class Sharded(Block):
        pass

    assert biases_in_norms(Sharded(small(), 1)) == [False, True, False]
    block = Block(small(), 1)
    block.forward = block.forward
    assert biases_in_norms(block) == [False, True, False]


def test_tokens_carried_in_another_precision_keep_their_biases(biases_in_norms, monkeypatch):
    """Tokens in float32 with products in half precision, as under autocast, or the other way round."""
    block = Block(small(), 1)
    monkeypatch.setattr(eligible, "compute_dtype", lambda x: torch.float16)
    assert biases_in_norms(block) == [False, False, False]


class Made(TorchDispatchMode):
    """Records the operators that return tensors of one shape, and how many of these tensors are alive."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.by, self.made = shape, [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for found in out if isinstance(out, tuple) else (out,):
            if isinstance(found, torch.Tensor) and found.shape == self.shape:
                self.by.append(function)
                self.made.append(weakref.ref(found))
        return out

    def alive(self) -> int:
        return sum(found() is not None for found in self.made)


@pytest.mark.parametrize("layout", [LAYOUT, Layout.padded(torch.ones(2, 3, dtype=torch.bool))])
@pytest.mark.usefixtures("biases_in_norms")
def test_nothing_of_attention_lives_as_long_as_the_mlp(layout):
    """Without gradients only the tokens and their norm, the input of the MLP, are alive."""
    block, alive = Block(small(), 1).bfloat16(), []
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        x, pending = torch.randn(2, 6, 5, 12, dtype=torch.bfloat16)
        with Made((6, 5, 12)) as made, block.mlp.register_forward_pre_hook(lambda *_: alive.append(made.alive())):
            block(Residual(x, pending), layout)
    assert len(made.by) > 4
    assert alive == [2]


@pytest.mark.parametrize("frozen", [(), (1, 2), (3, 4), (1, 2, 3, 4)])
def test_an_mlp_keeps_and_makes_no_more_than_its_gradients_need(frozen):
    """The input is for the first weight's gradient, the hidden layer for the second's, and nothing is made of zeros."""
    kept, (wide, slim) = [], ((6, 5, 16), (6, 5, 8))
    with FakeTensorMode():
        given = [torch.randn(size, requires_grad=True) for size in (slim, (16, 8), (16,), (8, 16), (8,))]
        for i in frozen:
            given[i].requires_grad_(False)
        with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x.shape), x)[1], lambda x: x):
            out = mlp_layer.mlp_op(*given)[0]
        with Made(wide) as made:
            out.backward(torch.ones_like(out))
    assert kept.count(slim) == (1 not in frozen)
    assert kept.count(wide) == 1 + (3 not in frozen)
    assert [x.grad is not None for x in given] == [i not in frozen for i in range(5)]
    assert torch.ops.cerebro_eeg.mlp_backward.default in made.by
    assert torch.ops.aten.zeros.default not in made.by


BOTH = [True, True]


@pytest.fixture
def without_modules(monkeypatch):
    """Return which blocks of an encoder could run without their modules, as far as the rule was asked.

    Nothing is launched: a block without modules returns its tokens.
    """
    monkeypatch.setattr(eligible, "on_gpu", lambda x: True)
    monkeypatch.setattr(
        eligible, "compute_dtype", lambda x: torch.bfloat16 if torch.is_autocast_enabled("cpu") else x.dtype
    )
    noted, make = [], inference_cuda.make_step

    def note(block, shape):
        found = make(block, shape)
        noted.append(found is not None)
        return found

    monkeypatch.setattr(inference_cuda, "make_step", note)
    monkeypatch.setattr(CudaBlock, "__call__", lambda self, x, missing, own: (x.clone(), MissingBiases()))
    monkeypatch.setattr(norm, "run_add_norm", lambda x, pending, missing, weight, bias, eps, out, *rest: out.copy_(x))

    def run(encoder, *given, layout=LAYOUT, dtype=torch.bfloat16, **named):
        noted.clear()
        x = torch.zeros(6, 5, encoder.config.width, dtype=dtype)
        encoder.run(x, layout, *given, **named)
        return list(noted)

    return run


def bf16_encoder(**settings):
    return Encoder(small(width=48, **settings)).bfloat16()


def test_which_runs_need_no_modules(without_modules):
    """Runs without gradients, keys, drop path, pads, stock kernels and modes of torch that record operators."""
    encoder = bf16_encoder()
    with torch.no_grad():
        assert without_modules(encoder) == BOTH
        assert without_modules(encoder, layout=Layout.ragged([2, 4])) == BOTH
        assert without_modules(encoder, layer=1) == [True]
    assert without_modules(encoder) == []
    with torch.inference_mode():
        assert without_modules(encoder) == BOTH
    with torch.no_grad():
        assert without_modules(encoder, torch.ones(6, 5, dtype=torch.bool)) == []
        assert without_modules(encoder, layout=Layout.padded(torch.ones(2, 3, dtype=torch.bool))) == []
        for choice in ("stock", "stock attention"):
            with eligible.use(choice):
                assert without_modules(encoder) == []
        for mode in (FlopCounterMode(display=False), torch.device("cpu"), Made((1,)), forward_ad.dual_level()):
            with mode:
                assert without_modules(encoder) == []
        encoder.set_drop_path(0.5)
        assert without_modules(encoder.train()) == []
        assert without_modules(encoder.eval()) == BOTH
        assert without_modules(encoder.float(), dtype=torch.float32) == []


def test_runs_without_modules_under_autocast(without_modules):
    """Tokens must have the precision of autocast; tokens in float32 run as modules."""
    encoder = Encoder(small(width=48))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert without_modules(encoder) == BOTH
        assert without_modules(encoder, dtype=torch.float16) == []
        assert without_modules(encoder, dtype=torch.float32) == []
        encoder.float32_residual = True
        assert without_modules(encoder) == []


@pytest.mark.parametrize("kind", KINDS)
def test_which_kinds_need_no_modules(kind, without_modules):
    with torch.no_grad():
        assert without_modules(bf16_encoder(attention=kind)) == [kind == "alternating"] * 2
        assert without_modules(bf16_encoder(attention=kind, bias=False)) == [kind == "alternating"] * 2
        assert without_modules(bf16_encoder(attention=kind, norm="post")) == [False, False]
        assert without_modules(Encoder(small(attention=kind, width=1032)).bfloat16()) == []  # norms end at 1,024


def test_without_triton_or_on_amd_all_blocks_run_as_modules(without_modules, monkeypatch):
    encoder = bf16_encoder()
    with torch.no_grad(), monkeypatch.context() as patch:
        patch.setattr(eligible, "TRITON", False)
        assert without_modules(encoder) == []
    monkeypatch.setattr(torch.version, "hip", "6")
    with torch.no_grad():
        assert without_modules(encoder) == []


def test_a_block_that_is_watched_or_changed_makes_all_blocks_run_as_modules(without_modules):
    """The list tells which blocks could run without modules; one False means that none does."""

    class Louder(Linear):
        pass

    encoder = bf16_encoder()
    names = ("", "norm1", "attention", "attention.qkv", "attention.out", "norm2", "mlp", "mlp.up", "mlp.down")
    with torch.no_grad():
        assert without_modules(encoder) == BOTH
        for part in map(encoder.blocks[1].get_submodule, names):
            for watch in (
                part.register_forward_hook,
                part.register_forward_pre_hook,
                part.register_full_backward_hook,
                part.register_full_backward_pre_hook,
            ):
                with watch(lambda *given: None):
                    assert without_modules(encoder) == [True, False]
            for name in ("forward", "_compiled_call_impl"):
                part.__dict__[name] = part.forward
                assert without_modules(encoder) == [True, False]
                del part.__dict__[name]
        with torch.nn.modules.module.register_module_forward_hook(lambda *given: None):
            assert without_modules(encoder) == [False, False]
        assert without_modules(encoder) == BOTH
    weight = encoder.blocks[1].mlp.up.weight.detach()
    for change in (
        lambda it: setattr(it.mlp, "up", Louder(48, 96).bfloat16()),
        lambda it: setattr(it.mlp, "up", torch.nn.Sequential(it.mlp.up)),
        lambda it: setattr(it.mlp, "up", Linear(48, 80).bfloat16()),
        lambda it: setattr(it.mlp.up, "weight", torch.nn.Parameter(TwoTensor(weight, weight))),
        lambda it: parametrizations.weight_norm(it.attention.out),
        lambda it: prune.l1_unstructured(it.attention.qkv, "bias", 0.5),
        lambda it: it.mlp.float(),
        lambda it: it.attention.qkv.to("meta"),
        lambda it: setattr(it, "norm2", torch.nn.RMSNorm(48)),
        lambda it: setattr(it, "norm2", LayerNorm(48, bias=False).bfloat16()),
        lambda it: setattr(it, "__class__", type("Sharded", (Block,), {})),
        lambda it: setattr(it.attention, "__class__", type("Other", (type(it.attention),), {})),
    ):
        encoder = bf16_encoder()
        change(encoder.blocks[1])
        with torch.no_grad():
            made = inference_cuda.read_shape(torch.zeros(6, 5, 48, dtype=torch.bfloat16), LAYOUT)
            assert inference_cuda.make_step(encoder.blocks[0], made) is not None
            assert inference_cuda.make_step(encoder.blocks[1], made) is None


def test_axes_that_are_too_long_run_as_modules(without_modules):
    encoder = bf16_encoder()
    with torch.no_grad():
        for rows, tokens, width, wanted in ((300, 2, 300, [False, True]), (3, 300, 3, [True, False])):
            shape = inference_cuda.read_shape(torch.zeros(rows, tokens, 48).bfloat16(), Layout.uniform(1, width))
            found = [inference_cuda.make_step(block, shape) is not None for block in encoder.blocks]
            assert found == wanted


def test_blocks_compiled_by_compile_parts_need_no_modules(without_modules, monkeypatch):
    """Compiled blocks run without modules, too; with stock kernels or standard attention the compiled code runs.

    A block that other code has compiled runs as that code wants.
    """
    called = []

    def compiled(part, **given):
        return lambda *its, **named: (called.append(part), part(*its, **named))[1]

    monkeypatch.setattr(torch, "compile", compiled)
    for kind, choice, wanted in (("alternating", "auto", 0), ("alternating", "stock", 2), ("standard", "auto", 2)):
        encoder = bf16_encoder(attention=kind)
        encoder.compile_parts(dynamic=False)
        called.clear()
        with torch.no_grad(), eligible.use(choice):
            assert without_modules(encoder) == {"auto": [wanted == 0] * 2, "stock": []}[choice]
        blocks = [part for part in called if isinstance(part.__self__, Block)]
        assert len(blocks) == wanted
        assert len(called) == wanted + (wanted > 0)  # finish
    encoder = bf16_encoder()
    encoder.compile_parts()
    encoder.blocks[0].compile()
    with torch.no_grad():
        assert without_modules(encoder) == [False, True]


@pytest.fixture
def on_hopper():
    if not hopper.is_hopper(torch.device("cuda")):
        pytest.skip("needs a Hopper GPU")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("length", "dim", "dtype"),
    [
        (3, 16, torch.bfloat16),
        (20, 16, torch.bfloat16),
        (20, 16, torch.float16),
        (20, 16, torch.float32),
        (20, 48, torch.bfloat16),
        (20, 64, torch.bfloat16),
        (20, 128, torch.bfloat16),
        (24, 40, torch.float16),
        (32, 48, torch.bfloat16),
        (36, 16, torch.bfloat16),
        (36, 32, torch.bfloat16),
        (36, 48, torch.float16),
        (36, 48, torch.bfloat16),
        (48, 64, torch.bfloat16),
        (36, 64, torch.float32),
        (64, 16, torch.bfloat16),
        (64, 64, torch.bfloat16),
        (64, 48, torch.float32),
    ],
)
def test_cuda_short_axes(length, dim, dtype):
    check([length] * 3, 4, 4, dim, dtype, across=True, device="cuda")
    check([3], length, 4, dim, dtype, across=False, device="cuda")
    real = torch.rand(length * 3) < 0.5
    check([length] * 3, 4, 4, dim, dtype, across=True, real=real, device="cuda")
    check([length, 0, 1, max(1, length - 1)], 4, 4, dim, dtype, across=True, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("length", "dim"),
    [(5, 16), (16, 48), (20, 16), (20, 48), (20, 64), (32, 16), (32, 48), (36, 48), (40, 16), (64, 64)],
)
def test_cuda_heads_one_after_the_other(length, dim, dtype, monkeypatch):
    check_turns(length, 12, dim, dtype, monkeypatch, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(("length", "dim"), [(100, 16), (128, 128), (256, 64)])
def test_cuda_longer_axes(length, dim):
    check([length, length - 50], 2, 2, dim, torch.bfloat16, across=True, device="cuda")
    check([3], length, 2, dim, torch.float16, across=False, device="cuda", q=7.0, k=-7.0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("rows", "width", "hidden"), [(1, 64, 256), (700, 192, 768), (60, 200, 712), (33, 100, 400)])
def test_cuda_mlp(rows, width, hidden, fused, dtype, monkeypatch):
    """By the rule, and as on GPUs other than Hopper."""
    if not fused:
        monkeypatch.setattr(mlp_layer, "fuses", lambda x, width, hidden: False)
    check_mlp(rows, width, hidden, dtype, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("rows", "width", "hidden", "bias"),
    [(1, 192, 768, True), (23, 192, 768, True), (9000, 192, 768, False), (700, 128, 384, True), (2900, 576, 2304, True),
     (333, 256, 1024, True), (43, 768, 3072, True), (3000, 768, 3072, False), (100, 640, 512, True),
     (300, 64, 128, True), (400, 320, 128, False), (200, 384, 640, True), (300, 512, 2048, True),
     (150, 1024, 256, True)],
)  # fmt: skip
def test_cuda_mlp_in_gluon(rows, width, hidden, bias, dtype, monkeypatch, on_hopper):
    """Use Gluon from one token on; the rule would use Triton for few tokens."""
    monkeypatch.setattr(mlp_launch, "filling", lambda device: 1)
    assert mlp_launch.by_gluon(torch.empty(1, width, device="cuda", dtype=dtype), width, hidden) is not None
    check_mlp(rows, width, hidden, dtype, bias=bias, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("samples", [1, 200, 1280, 8192])
def test_cuda_noise(samples):
    check_noise(samples, "cuda")


@pytest.mark.gpu
def test_cuda_mlp_of_many_tokens():
    """Offsets beyond 2^31, and the same bits twice."""
    torch.manual_seed(0)
    sizes = (1500, 1000, 192), (1536, 192), (1536,), (192, 1536), (192,)
    given = [(torch.randn(size, device="cuda") / 8).bfloat16().requires_grad_() for size in sizes]
    d_out = torch.randn(1500, 1000, 192, device="cuda", dtype=torch.bfloat16)
    runs = []
    for _ in range(2):
        out, hidden, _ = mlp_layer.mlp_op(*given)
        assert hidden.numel() > 2**31
        runs.append((out, *torch.autograd.grad(out, given, d_out)))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    end = [given[0][-2:].detach().requires_grad_(), *given[1:]]
    last = mlp_layer.mlp_op(*end)[0]
    assert torch.equal(runs[0][0][-2:], last)
    assert torch.equal(runs[0][1][-2:], torch.autograd.grad(last, end[0], d_out[-2:])[0])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("rows", "width"), [(1, 8), (99, 48), (9000, 192), (700, 200), (99, 256), (7000, 576), (50, 768), (3, 1000)]
)
def test_cuda_norm(rows, width, dtype):
    check_norm(rows, width, dtype, device="cuda")
    check_norm(rows, width, dtype, pending=False, device="cuda")
    check_norm(rows, width, dtype, pending_bias=torch.float32, device="cuda")
    check_norm(rows, width, dtype, pending_bias=dtype, device="cuda")
    for tokens in (1, 3, 20):
        check_norm(rows, width, dtype, factor=True, tokens=tokens, device="cuda")
        check_norm(rows, width, dtype, pending_bias=torch.float32, factor=True, tokens=tokens, device="cuda")
    for out in (dtype, torch.float32):
        for biases in ((None, None), (dtype, None), (dtype, torch.float32), (torch.float32, torch.float32)):
            check_norm_without_a_sum(rows, width, dtype, out, biases, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_cuda_block(kind, cast, dtype):
    for bias in (True, False):
        for drop in (False, True):
            config = small(attention=kind, width=48, heads=3, bias=bias)
            check_block(config, dtype, cast=cast, drop=drop, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "outputs"), [(0, 576), (1, 192), (100, 576), (20_001, 576), (9000, 768)])
def test_cuda_narrow(rows, outputs, dtype, on_hopper):
    check_narrow(rows, outputs, dtype, device="cuda")


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of inductor
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cuda_narrow_under_autocast_eager_and_compiled(dtype, on_hopper):
    """One graph with the operator in it, and the gradients of float32 weights, against float64."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer, x = Linear(192, 576).cuda(), torch.randn(50, 20, 192, device="cuda", requires_grad=True)
    d_out = torch.randn(50, 20, 576, device="cuda").to(dtype)
    given = (x, layer.weight, layer.bias)
    exact_in = [p.detach().double().requires_grad_() for p in given]
    wanted = torch.autograd.grad(torch.nn.functional.linear(*exact_in), exact_in, d_out.double())
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    def run(x):
        return linear_layer.linear(layer, x, fused_gradient=True)

    for call in (run, torch.compile(run, backend=backend, fullgraph=True), torch.compile(run, fullgraph=True)):
        with torch.autocast("cuda", dtype):
            out = call(x)
        assert out.dtype == dtype
        for a, b in zip(torch.autograd.grad(out, given, d_out), wanted, strict=True):
            assert a.dtype == torch.float32
            assert (a.double() - b).norm() <= 2 * BOUND[dtype] * b.norm()
    (graph,) = graphs
    assert "narrow_linear" in graph.code


@pytest.mark.gpu
def test_cuda_narrow_with_offsets_beyond_32_bits(on_hopper):
    d_out = torch.zeros(3_800_000, 576, device="cuda", dtype=torch.bfloat16)
    assert d_out.numel() > 2**31
    x = torch.randn(3_800_000, 192, device="cuda", dtype=torch.bfloat16)
    d_out[-9:].normal_()
    d_weight, d_bias = linear_layer.narrow_linear_backward(d_out, x)
    torch.testing.assert_close(d_weight.double(), d_out[-9:].double().T @ x[-9:].double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(d_bias.double(), d_out[-9:].double().sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_cuda_rows_beyond_every_limit():
    """4 million rows, offsets beyond 2^31, deterministic to the bit."""
    qkv = torch.randn(4_000_000, 4, 192, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    assert qkv.numel() > 2**31
    d_out = torch.randn(4_000_000, 4, 64, device="cuda", dtype=torch.bfloat16)
    runs = []
    for _ in range(2):
        out = attend(qkv, Layout.uniform(1_000_000, 4), "time", 4)
        runs.append((out, torch.autograd.grad(out, qkv, d_out)[0]))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    end = qkv[-8:].detach().requires_grad_()
    last = attend(end, Layout.uniform(2, 4), "time", 4)
    assert torch.equal(runs[0][0][-8:], last)
    assert torch.equal(runs[0][1][-8:], torch.autograd.grad(last, end, d_out[-8:])[0])


def encoder_on_cuda(windows, channels, cast, **settings):
    """Return an encoder of Small's width, tokens in bf16, their layout, and autocast to bf16 if ``cast``."""
    torch.manual_seed(0)
    config = small(depth=4, width=192, heads=12, mlp_ratio=4.0, **settings)
    model = randomized(Encoder(config)).to("cuda", torch.float32 if cast else torch.bfloat16).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.mul_(0.1 if "norm" not in name and p.dim() > 1 else 1)
    counts = [channels] * windows if isinstance(channels, int) else list(channels) * windows
    x = torch.randn(sum(counts), 20, 192, device="cuda", dtype=torch.bfloat16)
    return model, x, Layout.ragged(counts, x.device), torch.autocast("cuda", torch.bfloat16, cast, cache_enabled=False)


@pytest.mark.gpu
@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("windows", "channels"), [(1, 1), (3, 19), (40, 20), (2, (19, 3, 36, 21))])
def test_cuda_blocks_without_modules(windows, channels, bias, cast, monkeypatch):
    """They are as exact as blocks with their modules, and every run gives the same bits."""
    model, x, layout, autocast = encoder_on_cuda(windows, channels, cast, bias=bias)
    given, wanted = x.clone(), run_exactly(model, x, layout)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), autocast:
            fast, plain, count = both_ways(model, x, layout, monkeypatch)
            assert torch.equal(fast, model.run(x, layout))
        assert count == 4
        as_exact(fast, plain, wanted, torch.bfloat16)
    assert torch.equal(x, given)


@pytest.mark.gpu
def test_cuda_blocks_without_modules_of_many_tokens(monkeypatch):
    """The MLP computes them in two halves."""
    model, x, layout, autocast = encoder_on_cuda(90, 20, cast=True)
    monkeypatch.setattr(inference_cuda, "HALVED", 1)
    with torch.no_grad(), autocast:
        fast, plain, count = both_ways(model, x, layout, monkeypatch)
    assert count == 4
    as_exact(fast, plain, run_exactly(model, x, layout), torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of inductor
def test_cuda_blocks_without_modules_compiled_and_captured(monkeypatch):
    """Compiled blocks and a CUDA graph give the same, also after weights have changed in place."""
    torch._dynamo.reset()
    model, x, layout, autocast = encoder_on_cuda(3, 19, cast=True)
    wanted = run_exactly(model, x, layout)
    with torch.no_grad(), autocast:
        fast, plain, _ = both_ways(model, x, layout, monkeypatch)
        model.compile_parts(dynamic=False)
        compiled, _, count = both_ways(model, x, layout, monkeypatch)
        assert count == 4
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            model.run(x, layout)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            captured = model.run(x, layout)
        graph.replay()
        for found in (fast, compiled, captured):
            as_exact(found, plain, wanted, torch.bfloat16)
        model.blocks[1].mlp.up.weight.mul_(-2)
        graph.replay()
        changed = model.run(x, layout)
        assert (captured - changed).norm() <= BOUND[torch.bfloat16] * changed.norm()
        assert (changed - plain).norm() > 0.1 * plain.norm()
    torch._dynamo.reset()


@pytest.mark.gpu
@pytest.mark.parametrize("cast", [False, True])
def test_cuda_blocks_without_modules_need_five_times_their_tokens(cast, monkeypatch):
    """The peak of a run, besides the weights, is below six times the tokens, with the casts of one block."""
    monkeypatch.setattr(inference_cuda, "HALVED", 1)
    model, x, layout, autocast = encoder_on_cuda(90, 20, cast)
    with torch.no_grad(), autocast:
        model.run(x, layout)  # workspaces stay
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        model.run(x.clone(), layout, own=True)
        assert torch.cuda.max_memory_allocated() - before < 6 * x.nbytes


def _mixture(counts, seed=0):
    torch.manual_seed(seed)
    windows = [torch.randn(c, 1280, device="cuda") * 20 for c in counts]
    return Batch.ragged(windows, [torch.tensor([(i + 1, 0) for i in range(c)]) for c in counts])


@pytest.mark.gpu
@pytest.mark.parametrize("style", ["simmim", "vitmae"])
def test_cuda_model_agrees_with_the_stock_path(style):
    torch.manual_seed(0)
    model = MaskedCerebro(preset("tiny").model, ObjectiveConfig(style=style)).cuda()
    batch = _mixture([19, 3, 36, 0, 21])
    noise = torch.rand(79, 20, device="cuda")
    losses, gradients = [], []
    for choice in ("auto", "stock"):
        model.zero_grad()
        with eligible.use(choice):
            loss = model(batch, noise).loss
            loss.backward()
        losses.append(loss)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(*losses)
    assert (gradients[0] - gradients[1]).norm() < 1e-4 * gradients[1].norm()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of inductor
def test_cuda_compiled_exported_and_captured_runs_equal_eager():
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = MaskedCerebro(preset("tiny").model).cuda()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(model, backend=backend, dynamic=True, fullgraph=True)
    for seed, counts in enumerate([[19, 21, 36], [18, 22], [64, 3, 5, 30], [2, 5, 9]]):
        batch, noise = _mixture(counts, seed), torch.rand(sum(counts), 20, device="cuda")
        torch.testing.assert_close(compiled(batch, noise).loss, model(batch, noise).loss)
    assert len(graphs) == 1

    encoder = model.encoder.eval().requires_grad_(False)
    signal, ids = torch.randn(2, 19, 1280, device="cuda"), torch.arange(1, 20, device="cuda")
    ids = torch.stack([ids, torch.zeros_like(ids)], 1).expand(2, 19, 2)

    class Padded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = encoder

        def forward(self, signal_BCT, channels_BC2):
            return self.encoder(Batch.dense(signal_BCT, channels_BC2)).per_window()

    eager = Padded()(signal, ids)
    exported = torch.export.export(Padded(), (signal, ids)).module()
    torch.testing.assert_close(exported(signal, ids), eager)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        encoder(Batch.dense(signal, ids[0]))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = encoder(Batch.dense(signal, ids[0])).per_window()
    graph.replay()
    torch.testing.assert_close(captured, eager)


def test_a_counter_of_flops_sees_the_operators():
    """It counts the same as for the products that they replace. Fake tensors are used, so no kernel runs."""
    with FakeTensorMode(), FlopCounterMode(display=False) as counter:
        qkv = torch.randn(6, 20, 3 * 32, requires_grad=True)
        short_axis.attend_short_axis(qkv, 2, True, 3).sum().backward()  # two windows of three rows
        assert counter.get_total_flops() == (4 + 10) * 2 * 20 * 3 * 3 * 32
    with FakeTensorMode(), FlopCounterMode(display=False) as counter:
        x, up, down = (torch.randn(size, requires_grad=True) for size in ((6, 20, 8), (16, 8), (8, 16)))
        mlp_layer.mlp_op(x, up, None, down, None)[0].sum().backward()
        mlp_layer.hidden_layer(x.detach(), up.detach(), None)
        assert counter.get_total_flops() == (2 + 4 + 1) * 2 * 6 * 20 * 8 * 16
    with FakeTensorMode(), FlopCounterMode(display=False) as counter:
        x, weight, bias = (torch.randn(*size, requires_grad=True) for size in ((6, 20, 192), (576, 192), (576,)))
        linear_layer.narrow_linear(x, weight, bias).sum().backward()
        assert counter.get_total_flops() == (1 + 2) * 2 * 6 * 20 * 192 * 576
