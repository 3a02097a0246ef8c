"""Tests of the results of kernels, on a GPU or on the CPU by Triton's interpreter.

pytest does not collect this file by itself. ``test_kernels.py`` runs it in a process with TRITON_INTERPRET=1, which
must be set before Triton is imported. On a GPU it calls the functions whose names start with ``check``.

The interpreter is slow. Cases marked ``soak`` test the same path of a kernel as another case, at another size.
"""

import contextlib
import copy
import dataclasses
import gc
import math
from itertools import pairwise

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from cerebro_eeg.batch import Layout
from cerebro_eeg.config import ModelConfig
from cerebro_eeg.fast import Residual, eligible, inference_cuda, linear_layer, mlp_layer, noise, norm
from cerebro_eeg.fast import attention as short_axis
from cerebro_eeg.fast.inference_cuda import CudaBlock
from cerebro_eeg.fast.norm import MissingBiases
from cerebro_eeg.model import attention
from cerebro_eeg.model.encoder import Block, Encoder
from cerebro_eeg.train import random_numbers
from tiny_models import KINDS, randomized, small

BOUND = {torch.float32: 1e-6, torch.float16: 6e-4, torch.bfloat16: 5e-3}
HALF = torch.float16  # the interpreter computes bfloat16 wrongly


def soak(*values):
    """Mark cases of a parametrization that only ``make soak`` runs."""
    return [pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=pytest.mark.soak) for v in values]


def plain(qkv, heads, sequences, real, keys):
    """Return attention by the plain formula, for each sequence of (row, token), each head and each query."""
    dim = qkv.shape[-1] // (3 * heads)
    q, k, v = qkv.unflatten(-1, (3, heads, dim)).unbind(2)
    out = q * 0
    for places in sequences:
        row, token = (torch.tensor(x, dtype=torch.int64) for x in (list(zip(*places, strict=True)) or [[], []]))
        is_real = real[row]
        seen = is_real & keys[row, token]
        if not seen.any():
            continue
        scores = torch.einsum("qhe,khe->hqk", q[row, token], k[row[seen], token[seen]]) / math.sqrt(dim)
        found = torch.einsum("hqk,khe->qhe", scores.softmax(-1), v[row[seen], token[seen]])
        out = out.index_put((row, token), found * is_real[:, None, None])
    return out.flatten(2)


def check(counts, tokens, heads, dim, dtype, *, across, real=None, keys=None, q=0.0, k=0.0, device="cpu"):
    """Compare output and gradient of random inputs with float64 autograd of :func:`plain`.

    Kernels compiled with another flag (KEEP, a bias) may round the last bit differently. Compare bits only where the
    arithmetic cannot differ.
    """
    torch.manual_seed(sum(counts) * 1000 + tokens)
    rows = sum(counts)
    qkv = torch.randn(rows, tokens, 3, heads, dim)
    qkv[:, :, 0] += q
    qkv[:, :, 1] += k
    qkv = qkv.flatten(2).to(dtype)
    d_out = torch.randn(rows, tokens, heads * dim).to(dtype)
    first = torch.tensor([0, *counts]).cumsum(0)
    if across:
        windows = pairwise(first.tolist())
        sequences = [[(row, n) for row in range(a, b)] for a, b in windows for n in range(tokens)]
    else:
        sequences = [[(row, n) for n in range(tokens)] for row in range(rows)]
    exact_in = qkv.double().requires_grad_()
    real_R = torch.ones(rows, dtype=torch.bool) if real is None else real
    keys_RN = torch.ones(rows, tokens, dtype=torch.bool) if keys is None else keys
    exact = plain(exact_in, heads, sequences, real_R, keys_RN)
    (d_exact,) = torch.autograd.grad(exact, exact_in, d_out.double(), materialize_grads=True)

    ragged = across and len(set(counts)) > 1
    there = [None if x is None else x.to(device) for x in (first if ragged else None, real, keys)]
    found_in = qkv.to(device).requires_grad_()
    found = short_axis.attend_short_axis(found_in, heads, across, max(counts, default=0), *there)
    (d_found,) = torch.autograd.grad(found, found_in, d_out.to(device))
    assert found.dtype == d_found.dtype == dtype
    with torch.no_grad():
        assert torch.equal(found, short_axis.attend_short_axis(found_in, heads, across, max(counts, default=0), *there))
    for ours, truth in ((found, exact), (d_found, d_exact)):
        error = (ours.double().cpu() - truth).norm() / truth.norm().clamp_min(1e-3)
        assert error <= BOUND[dtype], f"relative error {error:.1e}"
    return found, d_found


def check_turns(length, heads, dim, dtype, monkeypatch, *, device="cpu"):
    """Check that programs with several turns, which the rule uses for many sequences, give the same bits."""
    assert max(short_axis.tile(length, heads, dim, backward, False).turns for backward in (False, True)) > 1
    runs = []
    for filling in (2**31, 0):  # one turn, and all
        monkeypatch.setattr(short_axis, "FILLING", filling)
        along = check([2], length, heads, dim, dtype, across=False, device=device)
        runs.append(along + check([length, length // 2], 2, heads, dim, dtype, across=True, device=device))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def check_mlp(rows, width, hidden, dtype, *, bias=True, device="cpu"):
    """Compare output and gradients of an MLP with float64 autograd, and its hidden layer value by value.

    Some inputs are very large.
    """
    torch.manual_seed(rows)
    given = [torch.randn(rows, 3, width), torch.randn(hidden, width) * 2 / width**0.5, torch.randn(hidden)]
    given += [torch.randn(width, hidden) / hidden**0.5, torch.randn(width)]
    given[0][::5] *= 30
    given = [x.to(dtype) for x in given]
    used = [0, 1, 2, 3, 4] if bias else [0, 1, 3]
    d_out = torch.randn(rows, 3, width).to(dtype)

    def arguments(tensors):
        return [tensors[i] if i in used else None for i in range(5)]

    exact_in = [x.double().requires_grad_() for x in given]
    before = torch.nn.functional.linear(*arguments(exact_in)[:3])
    middle = torch.nn.functional.gelu(before)
    exact = torch.nn.functional.linear(middle, *arguments(exact_in)[3:])
    wanted = [exact, *torch.autograd.grad(exact, [exact_in[i] for i in used], d_out.double(), retain_graph=True)]
    (slope,) = torch.autograd.grad(middle.sum(), before)
    found_in = [x.to(device).requires_grad_() for x in given]
    found, out, kept = mlp_layer.mlp_op(*arguments(found_in))
    found_all = [found, *torch.autograd.grad(found, [found_in[i] for i in used], d_out.to(device))]
    for a, b in zip(found_all, wanted, strict=True):
        assert a.shape == b.shape
        assert a.dtype == dtype
        assert torch.isfinite(a).all()
        assert (a.cpu().double() - b).norm() <= BOUND[dtype] * b.norm()
    room = {torch.float32: 4e-7, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    out, kept = out.detach().cpu().double(), kept.cpu().double()
    if mlp_layer.fuses(found_in[0], width, hidden):  # rounding, and the error of the polynomial
        assert ((out - middle).abs() <= room * middle.abs() + 7e-5).all()
        assert ((kept - slope).abs() <= room * slope.abs() + 7e-5).all()
    else:  # compared with GELU of the same rounded input, only rounding differs
        middle = torch.nn.functional.gelu(kept)
        assert ((out - middle).abs() <= room * middle.abs() + 1e-6).all()
    assert torch.equal(mlp_layer.hidden_layer(*arguments([x.detach() for x in found_in])[:3]), out.to(device, dtype))


def factors(rows):
    """Return drop path's factors of rows: two of three are zero or no numbers of half precision."""
    return torch.tensor([(0, 1 / 0.9, 2)[row % 3] for row in range(rows)])


def check_norm(rows, width, dtype, *, pending=True, pending_bias=None, factor=False, tokens=3, device="cpu"):
    """Compare a sum, its LayerNorm and all gradients with float64 autograd; weights are float32, as under autocast.

    ``pending`` tells whether a branch is added, and ``pending_bias`` is the precision of its bias, or None. With
    ``factor`` the branch and its bias are multiplied by a factor per row.
    """
    torch.manual_seed(rows)
    given = [torch.randn(rows, tokens, width).to(dtype) + 1, (3 * torch.randn(rows, tokens, width)).to(dtype)]
    given += [torch.randn(width), torch.randn(width)]
    given += [] if pending_bias is None else [5 * torch.randn(width).to(pending_bias)]
    d_out = [torch.randn(rows, tokens, width).to(dtype) for _ in range(2)]
    factor_R = factors(rows) if factor else None
    exact_in = [x.double().requires_grad_() for x in given]
    branch = sum(exact_in[4:], exact_in[1] if pending else torch.zeros(()))
    total = exact_in[0] + (branch * factor_R.double()[:, None, None] if factor else branch)
    wanted = [total, torch.nn.functional.layer_norm(total, (width,), *exact_in[2:4], 1e-5)]
    found_in = [x.to(device).requires_grad_() for x in given]
    bias = None if pending_bias is None else found_in[4]
    of = [found_in[0], found_in[1] if pending else None, *found_in[2:4]]
    factor_R = factor_R.to(device) if factor else None
    found = list(norm.add_norm_op(*of, 1e-5, True, bias, factor_R)[:2])
    once_bias = None if pending_bias is None else bias.detach()
    once = norm.add_norm_op(*(None if x is None else x.detach() for x in of), 1e-5, False, once_bias, factor_R)
    assert factor or (torch.equal(found[0], once[0]) if pending else len(once[0]) == 0)
    # The kernel for inference is compiled with another flag (KEEP) and may round the last bit differently.
    assert not factor or (found[0] - once[0]).norm() <= 0.1 * BOUND[dtype] * once[0].norm()
    assert (found[1] - once[1]).norm() <= 0.1 * BOUND[dtype] * once[1].norm()
    if not pending:
        del exact_in[1], found_in[1]
    wanted += torch.autograd.grad(wanted, exact_in, [x.double() for x in d_out])
    found += torch.autograd.grad(found, found_in, [x.to(device) for x in d_out])
    if factor:  # a branch that is skipped changes nothing and gets no gradient
        assert torch.equal(found[0][::3], found_in[0][::3])
        assert not found[3][::3].any()
    kinds = [dtype] * (4 if pending else 3) + [torch.float32] * 2 + ([] if pending_bias is None else [pending_bias])
    for a, b, kind in zip(found, wanted, kinds, strict=True):
        assert a.shape == b.shape
        assert a.dtype == kind
        assert (a.cpu().double() - b).norm() <= BOUND[dtype] * b.norm()


def check_narrow(rows, outputs, dtype, *, device="cpu"):
    """Compare output and gradients of a layer with 192 inputs with float64 autograd; two runs have equal bits."""
    torch.manual_seed(rows)
    given = [torch.randn(rows, 192) + 0.5, torch.randn(outputs, 192) / 192**0.5, torch.randn(outputs)]
    given = [x.to(dtype) for x in given]
    d_out = (torch.randn(rows, outputs) + 0.1).to(dtype)
    exact_in = [x.double().requires_grad_() for x in given]
    exact = torch.nn.functional.linear(*exact_in)
    wanted = [exact, *torch.autograd.grad(exact, exact_in, d_out.double())]
    found_in = [x.to(device).requires_grad_() for x in given]
    found = linear_layer.narrow_linear(*found_in)
    gradients, again = (torch.autograd.grad(found, found_in, d_out.to(device), retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(gradients, again, strict=True))
    for a, b in zip([found, *gradients], wanted, strict=True):
        assert a.shape == b.shape
        assert a.dtype == dtype
        assert (a.cpu().double() - b).norm() <= BOUND[dtype] * b.norm()


@pytest.mark.parametrize("outputs", [192, 576])
@pytest.mark.parametrize("rows", [0, 1, 64, 65, 130, 500])
def test_narrow(rows, outputs):
    check_narrow(rows, outputs, HALF)


def test_narrow_of_nothing():
    x, weight, bias = (torch.randn(*size, requires_grad=True) for size in ((0, 3, 192), (576, 192), (576,)))
    out = linear_layer.narrow_linear(x, weight, bias)
    assert out.shape == (0, 3, 576)
    d_x, d_weight, d_bias = torch.autograd.grad(out, (x, weight, bias), out)
    assert d_x.shape == x.shape
    assert not d_weight.any()
    assert not d_bias.any()


def test_narrow_of_memory_that_is_not_contiguous_or_not_aligned():
    torch.manual_seed(0)
    x, d_out = torch.randn(100, 192, 3).to(HALF).transpose(1, 2), torch.randn(192).to(HALF).expand(100, 3, 192)
    wanted = linear_layer.narrow_linear_backward(d_out.contiguous(), x.contiguous())
    exact = d_out.flatten(0, 1).double().T @ x.flatten(0, 1).double()
    assert (wanted[0] - exact).norm() <= 1e-5 * exact.norm()
    shifted = []
    for given in (d_out, x):
        room = torch.empty(given.numel() + 1, dtype=HALF)[1:].view(given.shape)
        assert room.is_contiguous()
        assert room.data_ptr() % 16
        shifted.append(room.copy_(given))
    for given in ((d_out, x), shifted):
        assert all(torch.equal(a, b) for a, b in zip(linear_layer.narrow_linear_backward(*given), wanted, strict=True))


def test_narrow_reads_nothing_outside_and_fills_every_part():
    """Rows before and after the given ones hold NaN; sums of whole numbers are exact, so no row counts twice."""
    whole_d, whole_x = (torch.full((600, 192), math.nan, dtype=HALF) for _ in range(2))
    for rows in (1, 64, 200, 385, 500):
        d, x = whole_d[50 : 50 + rows], whole_x[50 : 50 + rows]
        d.copy_(torch.randint(-2, 3, d.shape))
        x.copy_(torch.randint(-2, 3, x.shape))
        d_weight, d_bias = linear_layer.narrow_linear_backward(d, x)
        assert torch.equal(d_weight, (d.double().T @ x.double()).float())
        assert torch.equal(d_bias, d.double().sum(0).float())
        assert d_weight.dtype == d_bias.dtype == torch.float32


def test_narrow_computes_what_is_needed(monkeypatch):
    torch.manual_seed(0)
    given = [torch.randn(70, 192).to(HALF), torch.randn(192, 192).to(HALF), torch.randn(192).to(HALF)]
    d_out = torch.randn(70, 192).to(HALF)
    calls, run = [], linear_layer.narrow_linear_backward
    monkeypatch.setattr(linear_layer, "narrow_linear_backward", lambda *a: (calls.append(1), run(*a))[1])
    whole = [x.clone().requires_grad_() for x in given]
    wanted = torch.autograd.grad(linear_layer.narrow_linear(*whole), whole, d_out)
    assert len(calls) == 1
    for needed in ([0], [1], [2], [0, 2], [1, 2]):
        calls.clear()
        some = [x.clone().requires_grad_(i in needed) for i, x in enumerate(given)]
        linear_layer.narrow_linear(*some).backward(d_out)
        for i, x in enumerate(some):
            assert (x.grad is not None) == (i in needed)
            if i in needed:
                torch.testing.assert_close(x.grad, wanted[i], rtol=2e-3, atol=2e-3)
        assert len(calls) == (1 in needed)


@pytest.mark.parametrize("kind", ["alternating", "two_axis", "bottleneck"])
def test_narrow_in_attention_eager_and_compiled(kind, monkeypatch):
    """With the rule of Hopper, the gradients of attention are those of torch's own layers, in one graph."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    part = attention.KINDS[kind](ModelConfig(width=192, heads=12, attention=kind), 1).to(HALF)
    x, layout = torch.randn(6, 20, 192).to(HALF), Layout.uniform(2, 3)
    names = [name for name, _ in part.named_parameters() if name.startswith("qkv")]
    calls, run = [], linear_layer.cast
    runs = []
    for how in ("stock", "eager", "compiled"):
        if how == "eager":
            monkeypatch.setattr(linear_layer, "can_fuse_gradient", lambda layer, x: True)
            monkeypatch.setattr(linear_layer, "cast", lambda *a: (calls.append(1), run(*a))[1])
        if how == "compiled":
            monkeypatch.setattr(linear_layer, "cast", run)
        call = torch.compile(part, backend="aot_eager", fullgraph=True) if how == "compiled" else part
        part.zero_grad()
        call(x, layout).square().sum().backward()
        runs.append([part.get_parameter(name).grad for name in names])
    assert len(calls) == len(names) // 2
    for found in runs[1:]:
        for a, b in zip(found, runs[0], strict=True):
            assert (a - b).norm() <= 3e-3 * b.norm()


class BiasesInNorms(TorchDispatchMode):
    """Records which norms add a pending bias in the forward pass, and which sum its gradient in the backward pass.

    It also records which norms multiply by drop path's factors, in either pass.
    """

    def __init__(self):
        super().__init__()
        self.added, self.summed, self.scaled = [], [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.cerebro_eeg.add_norm.default:
            self.added.append(args[6] is not None)
            self.scaled.append(args[7] is not None)
        if function is torch.ops.cerebro_eeg.add_norm_backward.default:
            self.summed.append(args[5])
            self.scaled.append(args[6] is not None)
        return function(*args, **(kwargs or {}))


def apart(stream):
    """Return the tokens of a residual stream, and its pending branch with its bias."""
    return stream.x_RND, stream._replace(x_RND=torch.zeros_like(stream.x_RND)).total()


def check_block(config, dtype, *, cast, drop=False, device="cpu"):
    """Compare a block whose norms add the biases of branches, and all its gradients, with float64.

    The error must be small, or hardly larger than that of torch's kernels. With ``cast`` weights are float32 and
    autocast casts them; else they are in half precision. With ``drop`` drop path skips one branch of each kind, and the
    norms multiply the others.
    """
    torch.manual_seed(0)
    block = randomized(Block(config, 1)).to(dtype)
    exact = copy.deepcopy(block).double()
    block.to(device, torch.float32 if cast else dtype)
    given, d_out = ([torch.randn(6, 5, config.width).to(dtype) for _ in range(2)] for _ in range(2))
    layout, wanted, stock = Layout.uniform(2, 3), None, None
    keep = torch.tensor([[1 / 0.9, 0], [0, 1 / 0.7]]) if drop else None
    before = factors(6) if drop else None  # of the branch of an earlier block
    for choice, ours in (("stock", exact), ("stock", block), ("auto", block)):
        to = {"device": "cpu", "dtype": torch.float64} if ours is exact else {"device": device, "dtype": dtype}
        ours.zero_grad()
        found_in = [x.to(**to, copy=True).requires_grad_() for x in given]
        precision = torch.autocast(device, dtype) if cast and ours is block else contextlib.nullcontext()
        with eligible.use(choice), BiasesInNorms() as noted:
            with precision:
                drops = [None if x is None else x.to(to["device"]) for x in (before, keep)]
                left = ours(Residual(*found_in, None, drops[0]), layout, None, drops[1])
                assert (left.factor_R is not None) == (choice == "auto" and drop)
                assert (left.bias_D is not None) == (choice == "auto" and config.bias)
                found = apart(left)
            torch.autograd.backward(found, [x.to(**to) for x in d_out])
        assert noted.added == ([False, config.bias] if choice == "auto" else [])
        assert noted.summed == ([config.bias, False] if choice == "auto" else [])
        assert noted.scaled == ([drop] * 4 if choice == "auto" else [])
        gradients = dict(ours.named_parameters())
        assert all(p.grad.dtype == p.dtype for p in gradients.values())
        biases = ("attention.out.bias", "mlp.down.bias") if config.bias else ()
        bias = [gradients[name].grad for name in biases]
        everything = torch.cat([p.grad.flatten() for p in gradients.values()])
        values = [x.detach().cpu().double() for x in (*found, *(x.grad for x in found_in), everything, *bias)]
        wanted = wanted or values
        errors = [float((a - b).norm() / b.norm()) for a, b in zip(values, wanted, strict=True)]
        stock = errors if choice == "stock" else stock
    for error, other in zip(errors, stock, strict=True):
        assert error <= max(4 * BOUND[dtype], 1.5 * other), f"{errors}, stock {stock}"


@pytest.fixture
def as_on_cuda(monkeypatch):
    """Make layers use our operators on the CPU, too, where the interpreter runs their kernels."""
    monkeypatch.setattr(eligible, "half_on_cuda", lambda x, *layer: eligible.ours() and eligible.plain(*layer))
    monkeypatch.setattr(eligible, "compute_dtype", lambda x: HALF if torch.is_autocast_enabled("cpu") else x.dtype)


@pytest.fixture
def kernels_on_cpu(as_on_cuda, monkeypatch):
    """Make blocks run without modules on the CPU, too, and attention by our kernel in both ways."""
    monkeypatch.setattr(short_axis, "can_attend", lambda qkv, heads, length: eligible.ours_for_attention())
    monkeypatch.setattr(eligible, "on_gpu", lambda x: True)


def both_ways(model, x, layout, monkeypatch, **given):
    """Return the tokens of blocks without modules and of blocks with modules, and the number of the former."""
    called, call = [], CudaBlock.__call__
    with monkeypatch.context() as patch:
        patch.setattr(CudaBlock, "__call__", lambda self, *given: (called.append(self), call(self, *given))[1])
        fast = model.run(x, layout, **given)
    count = len(called)
    with monkeypatch.context() as patch:
        patch.setattr(inference_cuda, "read_shape", lambda *given: None)
        patch.setattr(CudaBlock, "__call__", None)
        plain = model.run(x, layout, **given)
    return fast, plain, count


def run_exactly(model, x, layout, **given):
    """Return the tokens in float64 by torch's kernels."""
    exact = copy.deepcopy(model).double()
    with torch.no_grad(), eligible.use("stock"):
        return exact.run(x.double(), layout, **given)


def as_exact(fast, plain, wanted, dtype):
    """Check that blocks without modules are as near to float64 as blocks with modules, and both near enough."""
    errors = [float((found.double() - wanted).norm() / wanted.norm()) for found in (fast, plain)]
    assert errors[0] <= 1.1 * errors[1] <= 4 * BOUND[dtype], f"without modules {errors[0]}, with modules {errors[1]}"


def encoder_case(counts=(3, 3), tokens=5, dtype=HALF, **settings):
    torch.manual_seed(0)
    model = randomized(Encoder(small(depth=4, width=48, **settings))).to(dtype).eval()
    model.blocks = model.blocks[:3]
    return model, torch.randn(sum(counts), tokens, 48).to(HALF), Layout.ragged(counts)


@pytest.mark.usefixtures("kernels_on_cpu")
@pytest.mark.parametrize(
    ("mode", "counts", "bias", "cast", "fused"),
    [
        (torch.no_grad, (2, 4, 1), True, True, True),
        (torch.inference_mode, (3, 3), False, False, False),
        *soak((torch.no_grad, (3, 3), True, False, True), (torch.inference_mode, (2, 4, 1), False, True, True)),
    ],
)
def test_blocks_without_modules(mode, counts, bias, cast, fused, monkeypatch):
    """Along both axes, for windows of equal and of different widths, with weights in half precision or cast."""
    if not fused:
        monkeypatch.setattr(mlp_layer, "fuses", lambda x, width, hidden: False)
    model, x, layout = encoder_case(counts, dtype=torch.float32 if cast else HALF, bias=bias)
    given = x.clone()
    with mode(), torch.autocast("cpu", HALF, enabled=cast):
        for layer, carried in ((None, False), (2, True)):
            fast, plain, count = both_ways(model, x, layout, monkeypatch, layer=layer, carried=carried)
            assert count == (layer or 3)
            assert fast.dtype == plain.dtype == (torch.float32 if cast and not carried else HALF)
            as_exact(fast, plain, run_exactly(model, x, layout, layer=layer), HALF)
    assert torch.equal(x, given)


@pytest.mark.soak
@pytest.mark.usefixtures("kernels_on_cpu")
def test_an_mlp_in_two_halves(monkeypatch):
    """The second half may be smaller. The constant HALVED decides from how many bytes on there are two halves."""
    model, x, layout = encoder_case((13, 18), tokens=10)
    model.blocks = model.blocks[:1]
    sizes, run = [], mlp_layer.run_hidden
    monkeypatch.setattr(
        mlp_layer, "run_hidden", lambda x, *given, **named: (sizes.append(len(x)), run(x, *given, **named))[1]
    )
    token = model.blocks[0].mlp.up.out_features * HALF.itemsize
    for least, wanted in ((311, [310]), (310, [256, 54])):
        monkeypatch.setattr(inference_cuda, "HALVED", least * token)
        sizes.clear()
        with torch.no_grad():
            fast, plain, count = both_ways(model, x, layout, monkeypatch)
        assert sizes[: len(wanted)] == wanted
        assert count == 1
        as_exact(fast, plain, run_exactly(model, x, layout), HALF)


WAYS = ["hook", "another forward", "hook of the mlp", "hook of the norm", "subclass of the norm"]


@pytest.mark.usefixtures("kernels_on_cpu")
@pytest.mark.parametrize("way", WAYS)
def test_a_stack_that_is_touched_anywhere_runs_as_modules_everywhere(way, monkeypatch):
    """Hooks, adapters and replaced layers are called, and the tensors that they see are not overwritten."""
    model, x, layout = encoder_case()
    wanted, seen = run_exactly(model, x, layout), []

    def look(module, given, out=None):
        tensors = [it for part in (*given, out) for it in (part if isinstance(part, tuple) else (part,))]
        seen.extend((it, it.clone()) for it in tensors if isinstance(it, torch.Tensor))

    block = model.blocks[1]
    if way == "hook":
        block.register_forward_hook(look)
    elif way == "another forward":
        forward = block.forward

        def changed(stream, *given):
            out = forward(stream, *given)
            look(block, (stream,), out)
            return Residual(out.total())

        block.forward = changed
    elif way == "hook of the mlp":
        model.blocks[2].mlp.register_forward_hook(look)
    elif way == "hook of the norm":
        model.norm.register_forward_hook(look)
    else:

        class Noting(torch.nn.LayerNorm):
            def forward(self, x):
                look(self, (x,))
                return super().forward(x)

        model.norm.__class__ = Noting
    with torch.no_grad():
        fast, plain, count = both_ways(model, x, layout, monkeypatch)
    assert count == 0
    assert len(seen) >= 2
    assert all(torch.equal(it, then) for it, then in seen)
    as_exact(fast, plain, wanted, HALF)


@pytest.mark.soak
@pytest.mark.usefixtures("kernels_on_cpu")
def test_blocks_without_modules_need_five_times_their_tokens(monkeypatch):
    """They are x, y, q, k and v, or x, y and half of the hidden layer. Tokens given with ``own`` are overwritten."""
    model, x, layout = encoder_case((13, 13), tokens=10, mlp_ratio=4.0)
    monkeypatch.setattr(inference_cuda, "HALVED", 1)
    monkeypatch.setattr(inference_cuda, "ROWS", 1)
    found = {}

    def allocated():
        """Return the memory of all tensors at least as large as the tokens, in units of the tokens."""
        tensors = (it for it in gc.get_objects() if type(it) is torch.Tensor)
        storages = {it.untyped_storage().data_ptr(): it.untyped_storage().nbytes() for it in tensors}
        return sum(size for size in storages.values() if size >= x.nbytes) / x.nbytes

    def noting(module, name):
        run = getattr(module, name)

        def noting_run(*given, **named):
            result = run(*given, **named)
            found.setdefault(name, []).append(allocated() - before)
            return result

        monkeypatch.setattr(module, name, noting_run)

    for module, name in ((short_axis, "run_attend"), (norm, "run_add_norm"), (mlp_layer, "run_hidden")):
        noting(module, name)
    before = allocated()
    with torch.no_grad():
        model.run(x.clone(), layout, carried=True, own=True)
    assert found == {"run_attend": [5] * 3, "run_add_norm": [2] * 7, "run_hidden": [4] * 6}


@pytest.mark.parametrize("pending_bias", [None, torch.float32])
@pytest.mark.parametrize(
    ("rows", "width"),
    [(1, 8), (2, 3), (50, 24), (30, 48), (90, 192), (7, 200), (7, 256), (3, 257), (5, 576), (3, 1000), (2, 1024)],
)
def test_norm(rows, width, pending_bias):
    """The second block of columns ends with the row, after it, or has one column."""
    check_norm(rows, width, HALF, pending_bias=pending_bias)
    check_norm(rows, width, HALF, pending=False)


@pytest.mark.parametrize("pending_bias", [None, torch.float32, HALF])
@pytest.mark.parametrize(
    ("rows", "tokens", "width"), [(1, 1, 8), (17, 1, 48), (9, 5, 192), (3, 20, 200), (2, 17, 24), (2, 3, 576)]
)
def test_norm_with_a_factor_per_row(rows, tokens, width, pending_bias):
    """Rows of the batch begin anywhere in a tile, and the last tile is not full."""
    check_norm(rows, width, HALF, pending_bias=pending_bias, factor=True, tokens=tokens)


@pytest.mark.parametrize("pending_bias", [False, True])
def test_the_plain_formula_of_a_factor_per_row(pending_bias):
    """``total()`` multiplies branch and bias, as the kernel does, and without a bias it has the bits of drop path."""
    x, pending = torch.randn(2, 6, 3, 8).to(HALF)
    bias, factor_R = torch.randn(8) if pending_bias else None, factors(6)
    found = Residual(x).plus(pending, bias, factor_R)
    if not pending_bias:
        assert torch.equal(found.total(), x + pending * factor_R.to(HALF)[:, None, None])
    weight, shift = torch.randn(2, 8)
    ours = norm.add_norm_op(x, pending, weight, shift, 1e-5, True, bias, factor_R)[0]
    torch.testing.assert_close(found.total(), ours, rtol=2e-3, atol=2e-3)


def test_the_factor_of_a_norm_may_be_of_any_kind():
    """Factors in another precision or with gaps in memory are the same factors; a branch that is NaN stays so."""
    x, pending = torch.randn(2, 6, 3, 8).to(HALF)
    pending[0, 1, 2] = math.nan
    weight, bias = torch.randn(2, 8)
    factor_R = torch.tensor([0, 2, 0, 2, 2, 0.0])
    found = []
    for its in (factor_R, factor_R.double(), factor_R.to(HALF), factor_R.repeat_interleave(2)[::2]):
        found.append(norm.add_norm_op(x, pending, weight, bias, 1e-5, True, bias, its)[0])
        assert torch.equal(found[-1].nan_to_num(), found[0].nan_to_num())
    assert found[0].isnan().nonzero().tolist() == [[0, 1, 2]]  # NaN times zero, as in a product


def check_norm_without_a_sum(rows, width, dtype, out, biases, device="cpu"):
    """Check the norm of tokens that lack two biases, one or none; tokens do not change, and biases are summed."""
    torch.manual_seed(rows * 10_000 + width)
    x, (weight, bias), left = torch.randn(rows, 1, width).to(dtype), torch.randn(2, width), torch.randn(2, width)
    missing = MissingBiases(
        *(None if kind is None else b.to(device, kind) for b, kind in zip(left, biases, strict=True))
    )
    lacks = sum((b.double().cpu() for b in missing if b is not None), torch.zeros(width, dtype=torch.float64))
    given, weight, bias = x.to(device), weight.to(device), bias.to(device)
    found = torch.full_like(given, torch.nan, dtype=out)
    lacking = norm.run_add_norm(given, None, missing, weight, bias, 1e-5, found, None)
    assert torch.equal(given.cpu(), x)
    total = x.double() + lacks
    wanted = torch.nn.functional.layer_norm(total, (width,), weight.double().cpu(), bias.double().cpu())
    error = (found.double().cpu() - wanted).norm() / wanted.norm()
    assert error <= (BOUND[torch.float32] if out == torch.float32 else BOUND[dtype])
    if missing == (None, None):
        assert lacking is None
    else:
        torch.testing.assert_close(lacking.double().cpu(), lacks, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(missing.added_to(given).double().cpu(), total, rtol=0, atol=4 * torch.finfo(dtype).eps)


BIASES = [(None, None), (HALF, None), (None, torch.float32), (torch.float32, torch.float32), (HALF, torch.float32)]


@pytest.mark.parametrize("biases", BIASES)
@pytest.mark.parametrize(("rows", "width", "out"), [(50, 48, HALF), (19, 192, torch.float32), (3, 200, HALF)])
def test_norm_without_a_sum(rows, width, out, biases):
    check_norm_without_a_sum(rows, width, HALF, out, biases)


@pytest.mark.parametrize(("rows", "width"), [(11, 192), (11, 200), (4, 576), (3, 1000)])
@pytest.mark.parametrize("programs", [1, 2, 5])
def test_norm_in_several_steps(rows, width, programs, monkeypatch):
    """The last steps may have fewer tokens, or none."""
    rule = norm.tile
    monkeypatch.setattr(norm, "tile", lambda width, kind: dataclasses.replace(rule(width, kind), programs=programs))
    check_norm(rows, width, HALF, pending_bias=torch.float32)
    check_norm(rows, width, HALF, pending_bias=torch.float32, factor=True)
    check_norm_without_a_sum(rows, width, HALF, HALF, (HALF, torch.float32))


@pytest.mark.parametrize("factor", [False, True])
@pytest.mark.parametrize("used", [0, 1])
def test_a_norm_of_which_only_one_result_is_used(used, factor):
    """If only the sum or only its norm is used, the other one has no gradient, not one of zeros."""
    torch.manual_seed(0)
    sizes = (9, 3, 40), (9, 3, 40), (40,), (40,), (40,)
    given = [torch.randn(*size) for size in sizes]
    exact = [x.double().requires_grad_() for x in given]
    factor_R = factors(9) if factor else None
    total = exact[0] + (exact[1] + exact[4]) * (factor_R.double()[:, None, None] if factor else 1)
    wanted = (total, torch.nn.functional.layer_norm(total, (40,), exact[2], exact[3]))[used]
    tensors = [x.to(HALF if i < 2 else torch.float32).requires_grad_() for i, x in enumerate(given)]
    found = norm.add_norm_op(*tensors[:4], 1e-5, True, tensors[4], factor_R)[used]
    d_out = torch.randn(9, 3, 40).to(HALF)
    for a, b in zip(
        torch.autograd.grad(found, tensors, d_out),
        torch.autograd.grad(wanted, exact, d_out.double(), allow_unused=True, materialize_grads=True),
        strict=True,
    ):
        assert (a.double() - b).norm() <= BOUND[HALF] * b.norm()


def test_a_norm_of_one_column():
    """The norm is then its bias, without a gradient for the input; the second block is empty."""
    x, pending, weight, bias = (torch.randn(*size).requires_grad_() for size in ((9, 1), (9, 1), (1,), (1,)))
    total, out, _ = norm.add_norm_op(x, pending, weight, bias, 1e-5, True, None, None)
    assert torch.equal(total, x + pending)
    assert torch.equal(out, bias.expand(9, 1))
    gradients = torch.autograd.grad(out, (x, pending, weight, bias), torch.ones(9, 1))
    assert [float(g.abs().sum()) for g in gradients] == [0, 0, 0, 9]


def test_norm_with_a_pending_bias_in_half_precision():
    check_norm(7, 24, HALF, pending_bias=HALF)


@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_block(kind, cast):
    check_block(small(attention=kind), HALF, cast=cast)
    check_block(small(attention=kind), HALF, cast=cast, drop=True)


@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.parametrize("drop", [False, True])
def test_block_without_biases(drop):
    check_block(small(bias=False), HALF, cast=False, drop=drop)


@pytest.mark.usefixtures("as_on_cuda")
def test_a_frozen_bias_is_added_and_its_gradient_not_summed_up():
    block = randomized(Block(small(), 1)).to(HALF)
    block.attention.out.bias.requires_grad_(False)
    x = torch.randn(6, 5, 12).to(HALF).requires_grad_()
    with BiasesInNorms() as noted:
        block(Residual(x, x.detach()), Layout.uniform(2, 3)).pending_RND.sum().backward()
    assert noted.added == [False, True]
    assert noted.summed == [False, False]


@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's compiler looks at it
@pytest.mark.parametrize(("kind", "drop"), [("alternating", False), ("alternating", True), ("bottleneck", False)])
def test_a_block_compiled_or_computed_again_is_the_same(kind, drop):
    torch._dynamo.reset()
    keep, before = (torch.tensor([[1 / 0.9, 0], [0, 1 / 0.7]]), factors(6)) if drop else (None, None)
    block = randomized(Block(small(attention=kind), 1)).to(HALF)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    runs = []
    for run in (block, compiled, lambda *given: checkpoint(block, *given, use_reentrant=False)):
        block.zero_grad()
        torch.manual_seed(0)
        x, pending = (torch.randn(6, 5, 12).to(HALF).requires_grad_() for _ in range(2))
        left = run(Residual(x, pending, None, before), Layout.uniform(2, 3), None, keep)
        assert (left.factor_R is not None) == drop
        found = apart(left)
        torch.autograd.backward(found, [torch.ones_like(x)] * 2)
        runs.append([*found, x.grad, pending.grad, *(p.grad for p in block.parameters())])
    for others in runs[1:]:
        torch.testing.assert_close(others, runs[0])


@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.parametrize(("counts", "layer"), [((2, 4, 1), None), ((3, 3), 2)])
def test_drop_path_of_a_whole_encoder_is_done_by_the_norms(counts, layer):
    """Each norm multiplies the branch before it, also where blocks are computed again in the backward pass.

    If only two of three blocks run, no norm follows, and the plain formula multiplies the last branch.
    """
    model, x, layout = encoder_case(counts)
    model.train().set_drop_path(0.3, "constant")
    noise = torch.rand(3, 2, len(counts))
    noise[0, 0, 0] = noise[1, 1, 0] = noise[2, 1, 1] = 0
    exact, runs = copy.deepcopy(model).double(), []
    ways = (exact, "stock", False), (model, "stock", False), (model, "auto", False), (model, "auto", True)
    for its, choice, recompute in ways:
        its.recompute = recompute
        its.zero_grad()
        with eligible.use(choice), BiasesInNorms() as noted:
            out = its.run(x.to(its.dtype), layout, None, noise, layer)
            norms = 2 * (layer or 3) + (layer is None)
            assert noted.scaled == ([False] + [True] * (norms - 1) if choice == "auto" else [])
            out.square().mean().backward()
        of = [p.grad.flatten() for p in its.blocks[:layer].parameters()]
        runs.append([it.detach().double() for it in (out, torch.cat(of))])
    for wanted, stock, found in zip(*runs[:3], strict=True):
        assert (found - wanted).norm() <= 1.5 * (stock - wanted).norm() <= 0.02 * wanted.norm()
    assert all(torch.equal(a, b) for a, b in zip(*runs[2:], strict=True))


@pytest.mark.usefixtures("as_on_cuda")
def test_an_exported_block_adds_the_bias_in_the_norm():
    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = randomized(Block(small(), 1)).to(HALF).requires_grad_(False)

        def forward(self, x, pending):
            return apart(self.block(Residual(x, pending), Layout.uniform(2, 3)))

    whole, given = Whole(), tuple(torch.randn(2, 6, 5, 12).to(HALF))
    for strict in (False, True):
        exported = torch.export.export(whole, given, strict=strict).module()
        with BiasesInNorms() as noted:
            found = exported(*given)
        assert noted.added == [False, True]
        torch.testing.assert_close(found, whole(*given))


@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.parametrize("train", [False, True])
def test_the_first_norm_is_ours(train):
    """Our kernel also computes the first norm, which adds nothing: its backward pass adds two gradients."""
    block, x = Block(small(), 1), torch.randn(6, 5, 12).to(HALF).requires_grad_(train)
    with BiasesInNorms() as noted, torch.autocast("cpu", HALF), torch.set_grad_enabled(train):
        left = block(Residual(x), Layout.uniform(2, 3))
        assert left.x_RND.shape == x.shape
        assert left.x_RND.dtype == left.pending_RND.dtype == HALF
        if train:
            (left.x_RND.sum() + left.pending_RND.sum()).backward()
    assert noted.added == [False, True]
    assert noted.summed == ([True, False] if train else [])


@pytest.mark.usefixtures("as_on_cuda")
def test_a_pending_bias_that_torch_adds():
    """torch adds the bias where the kernels cannot be used."""
    plain = torch.nn.LayerNorm(8)
    x, pending, bias = torch.randn(4, 3, 8), torch.randn(4, 3, 8), torch.randn(8)
    for given, total in (((x, pending, bias), x + pending + bias), ((x, pending), x + pending), ((x,), x)):
        stream, out = Residual(*given).norm(plain)
        torch.testing.assert_close((stream.total(), out), (total, plain(total)))


def test_norm_of_nothing():
    x, (weight, bias) = torch.randn(0, 3, 8, requires_grad=True), torch.ones(2, 8, requires_grad=True)
    for pending_bias, factor_R in ((None, None), (bias, None), (bias, torch.ones(0))):
        total, out, _ = norm.add_norm_op(x, x.detach(), weight, weight.detach(), 1e-5, True, pending_bias, factor_R)
        assert total.shape == out.shape == (0, 3, 8)
        for p in (weight, pending_bias):
            assert p is None or torch.autograd.grad(out, p, out, retain_graph=True)[0].abs().sum() == 0


def test_norm_of_memory_that_is_not_contiguous():
    x, pending = torch.randn(5, 8, 3).to(HALF).transpose(1, 2), torch.randn(1, 1, 8).to(HALF).expand(5, 3, 8)
    given = [x, pending, torch.randn(16)[::2], torch.randn(1).expand(8), torch.randn(24)[::3]]
    found, same = ([v.detach().requires_grad_() for v in each] for each in (given, [v.contiguous() for v in given]))
    outputs = [norm.add_norm_op(*each[:4], 1e-5, True, each[4], None)[1] for each in (found, same)]
    assert torch.equal(*outputs)
    d_out = torch.randn(5, 8, 3).to(HALF).transpose(1, 2)
    gradients = [torch.autograd.grad(out, each, d_out) for out, each in zip(outputs, (found, same), strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("part", [0, 1])
def test_norm_with_one_of_its_outputs_used(part):
    given = [*torch.randn(2, 4, 3, 8).to(HALF), *torch.randn(3, 8)]
    d_out = torch.randn(4, 3, 8).to(HALF)
    exact_in = [x.double().requires_grad_() for x in given]
    total = exact_in[0] + exact_in[1] + exact_in[4]
    exact = (total, torch.nn.functional.layer_norm(total, (8,), *exact_in[2:4], 1e-5))[part]
    wanted = torch.autograd.grad(exact, exact_in, d_out.double(), materialize_grads=True)
    found_in = [x.requires_grad_() for x in given]
    found = torch.autograd.grad(norm.add_norm_op(*found_in[:4], 1e-5, True, found_in[4], None)[part], found_in, d_out)
    for a, b in zip(found, wanted, strict=True):
        assert (a.double() - b).norm() <= BOUND[HALF] * b.norm()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("rows", "width", "hidden", "bias"),
    [(1, 16, 64, True), (50, 24, 104, True), (90, 72, 280, False), (45, 200, 520, True)],
)
def test_mlp(rows, width, hidden, bias, fused, monkeypatch):
    if not fused:
        monkeypatch.setattr(mlp_layer, "fuses", lambda x, width, hidden: False)
    check_mlp(rows, width, hidden, HALF, bias=bias)


def test_mlp_of_rows_that_no_tile_can_describe():
    assert not mlp_layer.fuses(torch.empty(2, 12, dtype=HALF), 12, 64)
    check_mlp(5, 12, 50, HALF)


@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.parametrize(("inputs", "outputs"), [(12, 16), (16, 12), (16, 16)])
def test_mlp_that_changes_the_width(inputs, outputs):
    """If the fused kernels fit only one of the products, forward and backward must agree on the kept tensor."""
    torch.manual_seed(0)
    up, down = torch.nn.Linear(inputs, 64).to(HALF), torch.nn.Linear(64, outputs).to(HALF)
    x, d_out = torch.randn(6, 5, inputs).to(HALF), torch.randn(6, 5, outputs).to(HALF)
    found, stock = [], []
    for choice, gradients in (("auto", found), ("stock", stock)):
        with eligible.use(choice):
            out = mlp_layer.mlp(x, up, down)
        assert ("mlp" in type(out.grad_fn).__name__) == (choice == "auto" and inputs == outputs)
        gradients += torch.autograd.grad(out, [*up.parameters(), *down.parameters()], d_out)
    for a, b in zip(found, stock, strict=True):
        assert (a - b).norm() <= 4 * BOUND[HALF] * b.norm()


def test_mlp_in_float32():
    check_mlp(30, 16, 72, torch.float32)


@pytest.mark.parametrize("fused", [True, False])
def test_mlp_of_nothing(fused, monkeypatch):
    monkeypatch.setattr(mlp_layer, "fuses", lambda x, width, hidden: fused)
    given = [torch.randn(size, dtype=HALF, requires_grad=True) for size in ((0, 3, 8), (16, 8), (16,), (8, 16), (8,))]
    out, *_ = mlp_layer.mlp_op(*given)
    assert out.shape == (0, 3, 8)
    for x, gradient in zip(given, torch.autograd.grad(out, given, out), strict=True):
        assert gradient.shape == x.shape
        assert gradient.abs().sum() == 0
    assert mlp_layer.hidden_layer(*(x.detach() for x in given[:3])).shape == (0, 3, 16)


def test_mlp_sums_in_float32_for_any_default_type(monkeypatch):
    monkeypatch.setattr(mlp_layer, "fuses", lambda x, width, hidden: False)
    before = torch.get_default_dtype()
    torch.set_default_dtype(HALF)
    try:
        d_y, down, kept = torch.ones(3000, 1, 8), torch.ones(8, 16), torch.full((3000, 1, 16), 9.0)
        _, sums = mlp_layer.mlp_backward(d_y, down, kept)
    finally:
        torch.set_default_dtype(before)
    assert sums.dtype == torch.float32
    assert torch.equal(sums, torch.full((16,), 8 * 3000.0))


def test_mlp_of_memory_that_is_not_contiguous():
    x, up = torch.randn(5, 16, 4, dtype=HALF).transpose(1, 2), torch.randn(16, 32, dtype=HALF).T
    down = torch.randn(32, 16, dtype=HALF).T
    given = [x, up, torch.randn(64, dtype=HALF)[::2], down, torch.randn(32, dtype=HALF)[::2]]
    d_out = torch.randn(1, 1, 16, dtype=HALF).expand(5, 4, 16)
    found = []
    for tensors in (given, [x.contiguous() for x in given]):
        inputs = [x.detach().requires_grad_() for x in tensors]
        out, *_ = mlp_layer.mlp_op(*inputs)
        found.append([out, *torch.autograd.grad(out, inputs, d_out)])
    for a, b in zip(*found, strict=True):
        assert (a - b).norm() <= BOUND[HALF] * b.norm()  # torch's own products add up in another order


def test_mlp_spreads_what_is_not_a_number():
    """A NaN makes its own token NaN and no other, as in torch's GELU."""
    x = torch.randn(40, 1, 16, dtype=HALF)
    x[7, 0, 3] = math.nan
    given = [x, *(torch.randn(size, dtype=HALF) for size in ((64, 16), (64,), (16, 64), (16,)))]
    out, middle, slope = mlp_layer.mlp_op(*given)
    for found in (out, middle, slope):
        assert found[7].isnan().all()
        assert torch.isfinite(found[torch.arange(40) != 7]).all()


@pytest.mark.parametrize(
    ("length", "dtype"),
    [
        *((length, HALF) for length in (1, 3, 16, 20, 33, 48, 49, 64)),
        *((length, torch.float32) for length in (4, 36)),
        *soak(*((length, HALF) for length in (36, 40, 47)), (20, torch.float32), (48, torch.float32)),
    ],
)
def test_short_axes(length, dtype):
    check([length] * 2, 2, 1, 16, dtype, across=True)
    check([3], length, 2, 16, dtype, across=False)


def test_small_gradients_in_fp16():
    """Without a loss scaler gradients are near the smallest numbers of fp16, and no step may make them smaller."""
    torch.manual_seed(0)
    qkv, d_out = torch.randn(2, 20, 3 * 64).to(HALF), (torch.randn(2, 20, 64) * 1e-4).to(HALF)
    exact_in, found_in = qkv.double().requires_grad_(), qkv.clone().requires_grad_()
    everything = torch.ones(2, 20, dtype=torch.bool)
    exact = plain(exact_in, 1, [[(row, n) for n in range(20)] for row in range(2)], everything[:, 0], everything)
    (wanted,) = torch.autograd.grad(exact, exact_in, d_out.double())
    (found,) = torch.autograd.grad(short_axis.attend_short_axis(found_in, 1, False, 2), found_in, d_out)
    assert (found.double() - wanted)[..., :128].norm() <= 1.5e-3 * wanted[..., :128].norm()


@pytest.mark.parametrize(("heads", "dim"), [(1, 8), (3, 24), (4, 32), (2, 48), (2, 64), (1, 128)])
def test_head_dimensions(heads, dim):
    check([1], 20, heads, dim, HALF, across=False)
    check([5], 3, heads, dim, HALF, across=True)


@pytest.mark.parametrize("dim", [24, 64, 128, *soak(48)])
def test_an_axis_in_parts_or_not(dim):
    """36 tokens: three parts of 16, or one of 64, by the head dimension and the direction."""
    check([2], 36, 1, dim, HALF, across=False)
    check([36, 33, 32, 7], 1, 1, dim, HALF, across=True)


@pytest.mark.parametrize(("length", "dim"), [(20, 48), (40, 40), *soak((20, 40), (40, 48))])
def test_heads_in_two_pieces(length, dim):
    """Columns that are no power of two lie in two pieces backward, the second of which may not be full."""
    assert short_axis.tile(length, 2, dim, backward=True, exact=False).rest == 16
    check([2], length, 2, dim, HALF, across=False)
    check([length, length - 1, 17, 2], 1, 2, dim, HALF, across=True)


@pytest.mark.parametrize(("length", "dim"), [(65, 16), (100, 128), *soak((200, 48), (256, 16))])
def test_axes_in_several_blocks_of_queries(length, dim):
    check([1], length, 1, dim, HALF, across=False)
    check([length, length - 60], 1, 1, dim, HALF, across=True)


@pytest.mark.parametrize(
    ("length", "heads", "dim"), [(5, 6, 16), (40, 2, 16), *soak((20, 4, 16), (32, 4, 48), (50, 3, 32))]
)
def test_heads_one_after_the_other_give_the_same_bits(length, heads, dim, monkeypatch):
    check_turns(length, heads, dim, HALF, monkeypatch)


def _errors(qkv, d_out, dtype):
    """Return the errors of output and gradient against float64: ours, and those of rounded float32."""

    def both(x):
        x = x.clone().requires_grad_()
        q, k, v = x.unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        out = ((q @ k.mT / 4).softmax(-1) @ v).transpose(1, 2).flatten(2)
        return out, torch.autograd.grad(out, x, d_out.to(x.dtype))[0]

    qkv, d_out = qkv.to(dtype), d_out.to(dtype)
    x = qkv.clone().requires_grad_()
    out = short_axis.attend_short_axis(x, 2, False, 4)
    ours = out.detach(), torch.autograd.grad(out, x, d_out)[0]
    exact, best = both(qkv.double()), both(qkv.float())
    return [((a - c).norm(), (b.to(dtype) - c).norm()) for a, b, c in zip(ours, best, exact, strict=True)]


@pytest.mark.parametrize("length", [2, 20, 36, 64])
def test_score_gradients_are_not_rounded(length):
    """For equal keys the weighted sum is exactly zero, unless the weights were rounded before."""
    torch.manual_seed(length)
    qkv = torch.randn(4, length, 3, 2, 16)
    qkv[:, :, 0], qkv[:, :, 1] = 9, -9
    for ours, best in _errors(qkv.flatten(2), torch.randn(4, length, 32), HALF):
        assert ours <= 1.5 * best


@pytest.mark.parametrize("length", [2, 3, 7])
def test_weights_of_few_tokens_are_not_rounded(length):
    torch.manual_seed(length)
    for ours, best in _errors(torch.randn(60, length, 96), torch.randn(60, length, 32), HALF):
        assert ours <= 1.05 * best


@pytest.mark.parametrize("rows", [4, *soak(80)])
def test_large_scores_in_float32(rows):
    """The differences of scores of some hundred keep their digits in the softmax."""
    torch.manual_seed(0)
    for ours, best in _errors(torch.randn(rows, 20, 96) * 8, torch.randn(rows, 20, 32), torch.float32):
        assert ours <= 1.05 * best


@pytest.mark.parametrize(
    "counts",
    [
        [3, 1, 5],
        [0, 2, 0, 7, 0],
        [20, 1, 17, 32],
        [48, 0, 33],
        [1, 2, 1],
        *soak([36, 5], [64, 3, 40], [48, 33, 32, 0, 16]),
    ],
)
def test_ragged_windows(counts):
    check(counts, 2, 1, 16, HALF, across=True)


def test_ragged_windows_in_float32():
    check([36, 20, 33], 1, 1, 16, torch.float32, across=True)


@pytest.mark.parametrize(
    ("length", "across"),
    [(3, False), (3, True), (20, False), (36, True), (70, False), *soak((20, True), (36, False), (70, True))],
)
def test_pads_and_hidden_keys(length, across):
    """Windows without a real row, and sequences without a key, give zeros with zero gradients."""
    counts, tokens = ([length] * 2, 2) if across else ([2] * 2, length)
    rows = sum(counts)
    torch.manual_seed(0)
    real = torch.rand(rows) < 0.6
    real[: counts[0]] = False
    keys = torch.rand(rows, tokens) < 0.5
    keys[-1] = False
    keys[-counts[0] :, 0] = False
    for given in ({"real": real}, {"keys": keys}, {"real": real, "keys": keys}):
        out, gradient = check(counts, tokens, 1, 16, HALF, across=across, **given)
        if "real" in given:
            assert not out[~real].any()
            assert not gradient[~real].any()


@pytest.mark.parametrize("shift", [(7.0, -7.0), (7.0, 7.0)])
@pytest.mark.parametrize("length", [36, 64, 192])
def test_scores_far_from_zero(length, shift):
    """Log-sum-exps of -390 and +390, with axes of 36 to 192 and a mask: where cuDNN gives NaN."""
    q, k = shift
    real = torch.ones(length, dtype=torch.bool)
    real[length // 2 :] = False
    out, gradient = check([length], 1, 1, 64, HALF, across=True, real=real, q=q, k=k)
    assert torch.isfinite(out).all()
    assert torch.isfinite(gradient).all()


def test_nothing():
    for counts, tokens in (([], 4), ([0, 0], 4), ([3], 0)):
        check(counts, tokens, 2, 16, HALF, across=True)
        check(counts, tokens, 2, 16, HALF, across=False)


@pytest.mark.parametrize("across", [False, True])
def test_logarithms_of_sums_are_kept(across):
    """They are ordered by sequence, head and query; a query without keys has 0."""
    torch.manual_seed(0)
    counts, tokens, heads = ([20, 0, 17], 3, 3) if across else ([5], 20, 3)
    rows = sum(counts)
    qkv = torch.randn(rows, tokens, 3, heads, 16).to(HALF)
    real = torch.arange(rows) != 4
    first = torch.tensor([0, *counts]).cumsum(0) if across else None
    _, logs = short_axis.attend_op(qkv.flatten(2), heads, across, max(counts), first, real, None, True)
    q, k = qkv.double()[:, :, 0], qkv.double()[:, :, 1]
    wanted = []
    for start, count in zip([0, 20, 20] if across else range(rows), counts if across else [1] * rows, strict=True):
        window = slice(start, start + count)
        q_SHPE, k_SHPE = (x[window].permute(1, 2, 0, 3) if across else x[window].transpose(1, 2) for x in (q, k))
        seen = real[window] if across else real[window].expand(tokens)
        scores = (q_SHPE * seen[:, None]) @ k_SHPE.mT / 4  # what is no channel asks nothing
        logs_SHP = scores[..., seen].logsumexp(-1) / math.log(2) if seen.any() else scores.sum(-1) * 0
        wanted.append(logs_SHP.flatten())
    torch.testing.assert_close(logs.double(), torch.cat(wanted).double(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("dtype", "grad"), [(torch.float32, True), (HALF, False), (HALF, True)])
def test_no_memory_for_logarithms_that_are_not_needed(dtype, grad):
    """float32 needs no logarithms, and neither does a run without gradients."""
    qkv = torch.randn(2, 20, 96).to(dtype)
    logs = short_axis.attend_op(qkv, 2, False, 2, None, None, None, grad)[1]
    assert logs.shape == (80 if dtype == HALF and grad else 0,)


def test_memory_that_is_not_contiguous():
    qkv = torch.randn(3, 96, 5, dtype=HALF).transpose(1, 2).requires_grad_()
    out = short_axis.attend_short_axis(qkv, 2, False, 3)
    d_out = torch.randn(1, 1, 32, dtype=HALF).expand_as(out)
    (gradient,) = torch.autograd.grad(out, qkv, d_out)
    copy = qkv.detach().contiguous().requires_grad_()
    same = short_axis.attend_short_axis(copy, 2, False, 3)
    assert torch.equal(out, same)
    assert torch.equal(gradient, torch.autograd.grad(same, copy, d_out.contiguous())[0])


@pytest.mark.parametrize("across", [False, True])
def test_nothing_outside_is_read_or_written(across):
    """Rows before and after the given ones hold NaN, and stay as they are."""
    tokens, rows = (5, 17) if across else (17, 5)  # of an axis that keeps logarithms
    whole = torch.full((rows + 7, tokens, 96), math.nan, dtype=HALF)
    given = slice(4, 4 + rows)
    whole[given] = torch.randn(rows, tokens, 96)
    first = torch.tensor([0, 0, 17]) if across else None
    arguments = (2, across, 17, first, None, None)
    out, gradient = (torch.full((rows + 7, tokens, size), 7, dtype=HALF) for size in (32, 96))
    logs = torch.full((rows + 7, 2 * tokens), 7.0)
    logs[given] = math.nan
    short_axis._launch("forward", [whole[given], out[given], logs[given]], *arguments)
    d_out = torch.ones(rows, tokens, 32, dtype=HALF)
    short_axis._launch("backward", [whole[given], d_out, logs[given], gradient[given]], *arguments)
    for x in (out, gradient, logs):
        assert torch.isfinite(x).all()
        assert (x[:4] == 7).all()
        assert (x[given.stop :] == 7).all()


@pytest.mark.parametrize("samples", [200, 1280, *soak(2049)])
def test_noise_is_that_of_the_plain_formula(samples):
    check_noise(samples)


def check_noise(samples, device="cpu"):
    """Compare noise with the plain formula, also for rows without noise or of one value, and for large places."""
    torch.manual_seed(samples)
    signal_RT = (20 * torch.randn(5, samples)).half()
    signal_RT[3] = 7.0
    key_R, channel_R = torch.randint(-(2**62), 2**62, (5,)), torch.tensor([-1, 0, 5, 3, 2**40])
    out_RT = torch.empty(5, samples, device=device)
    noise.launch(signal_RT.to(device), torch.stack([key_R, channel_R], 1).to(device), out_RT, 0.3)
    clean_RT, places = signal_RT.double(), channel_R[:, None] * samples + torch.arange(samples)
    drawn_RT = random_numbers.normal(key_R[:, None], random_numbers.scrambled(places))
    size_R1 = 0.3 * clean_RT.std(-1, correction=0, keepdim=True) * (channel_R >= 0)[:, None]
    torch.testing.assert_close(out_RT.double().cpu(), clean_RT + size_R1 * drawn_RT, rtol=1e-6, atol=1e-4)
    assert torch.equal(out_RT[0].cpu(), signal_RT[0].float())
    assert torch.equal(out_RT[3].cpu(), signal_RT[3].float())
