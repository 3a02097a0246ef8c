"""What the kernels of attention and of GELU must compute; run on a GPU, or on the CPU by Triton's interpreter.

Not collected by itself: ``test_kernels.py`` runs it in a process of its own with TRITON_INTERPRET=1 (which must be set
before Triton loads), and on a GPU calls :func:`check` and :func:`check_gelu`.
"""

import math
from itertools import pairwise

import pytest
import torch

from cerebro_eeg.model import gelu, norm, short_axis

BOUND = {torch.float32: 1e-6, torch.float16: 6e-4, torch.bfloat16: 5e-3}
HALF = torch.float16  # the interpreter computes bfloat16 wrongly


def plain(qkv, heads, sequences, real, keys):
    """Attention in plain words: for each sequence of (row, token), each head and each query, a softmax in float64."""
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
    """Output and gradient of fresh random inputs against float64 autograd of :func:`plain`."""
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
    found = short_axis.attend(found_in, heads, across, max(counts, default=0), *there)
    (d_found,) = torch.autograd.grad(found, found_in, d_out.to(device))
    assert found.dtype == d_found.dtype == dtype
    for ours, truth in ((found, exact), (d_found, d_exact)):
        error = (ours.double().cpu() - truth).norm() / truth.norm().clamp_min(1e-3)
        assert error <= BOUND[dtype], f"relative error {error:.1e}"
    return found, d_found


def check_gelu(rows, width, hidden, dtype, *, bias=True, device="cpu"):
    """Output and gradients of a linear layer with GELU against float64 autograd; some inputs are very large."""
    torch.manual_seed(rows)
    given = [torch.randn(rows, 3, width), torch.randn(hidden, width) * 2 / width**0.5, torch.randn(hidden)]
    given[0][::5] *= 30
    given = [x.to(dtype) for x in given[: 3 if bias else 2]]
    d_out = torch.randn(rows, 3, hidden).to(dtype)
    exact_in = [x.double().requires_grad_() for x in given]
    before = torch.nn.functional.linear(*exact_in)
    exact = torch.nn.functional.gelu(before)
    wanted = [exact, *torch.autograd.grad(exact, exact_in, d_out.double())]
    found_in = [x.to(device).requires_grad_() for x in given]
    found, kept = gelu.linear_gelu_op(*found_in, *([] if bias else [None]))
    found_all = [found, *torch.autograd.grad(found, found_in, d_out.to(device))]
    for a, b in zip(found_all, wanted, strict=True):
        assert a.shape == b.shape
        assert a.dtype == dtype
        assert torch.isfinite(a).all()
        assert (a.cpu().double() - b).norm() <= BOUND[dtype] * b.norm()
    # Value by value, from the very input that GELU had: no more than rounding.
    exact = torch.nn.functional.gelu(kept.cpu().double())
    room = {torch.float32: 4e-7, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    assert ((found.detach().cpu().double() - exact).abs() <= room * exact.abs() + 1e-6).all()
    assert torch.equal(gelu.linear_gelu_once(*found_in, *([] if bias else [None])), found)


def check_norm(rows, width, dtype, *, device="cpu"):
    """A sum, its LayerNorm and all gradients against float64 autograd; weights are float32, as under autocast."""
    torch.manual_seed(rows)
    given = [torch.randn(rows, 3, width).to(dtype) + 1, (3 * torch.randn(rows, 3, width)).to(dtype)]
    given += [torch.randn(width), torch.randn(width)]
    d_out = [torch.randn(rows, 3, width).to(dtype) for _ in range(2)]
    exact_in = [x.double().requires_grad_() for x in given]
    total = exact_in[0] + exact_in[1]
    wanted = [total, torch.nn.functional.layer_norm(total, (width,), *exact_in[2:], 1e-5)]
    wanted += torch.autograd.grad(wanted, exact_in, [x.double() for x in d_out])
    found_in = [x.to(device).requires_grad_() for x in given]
    found = list(norm.add_norm_op(*found_in, 1e-5, True)[:2])
    once = norm.add_norm_op(*(x.detach() for x in found_in), 1e-5, False)
    assert all(torch.equal(a, b) for a, b in zip(found, once, strict=False))
    found += torch.autograd.grad(found, found_in, [x.to(device) for x in d_out])
    for a, b, kind in zip(found, wanted, [dtype] * 4 + [torch.float32] * 2, strict=True):
        assert a.shape == b.shape
        assert a.dtype == kind
        assert (a.cpu().double() - b).norm() <= BOUND[dtype] * b.norm()


@pytest.mark.parametrize(("rows", "width"), [(1, 8), (50, 24), (90, 192), (5, 576)])
def test_norm(rows, width):
    check_norm(rows, width, HALF)


def test_norm_of_nothing():
    x, weight = torch.randn(0, 3, 8, requires_grad=True), torch.ones(8, requires_grad=True)
    total, out, _ = norm.add_norm_op(x, x.detach(), weight, weight.detach(), 1e-5, True)
    assert total.shape == out.shape == (0, 3, 8)
    assert torch.autograd.grad(out, weight, out)[0].abs().sum() == 0


def test_norm_of_memory_that_is_not_contiguous():
    x, late = torch.randn(5, 8, 3).to(HALF).transpose(1, 2), torch.randn(1, 1, 8).to(HALF).expand(5, 3, 8)
    given = [x, late, torch.randn(16)[::2], torch.randn(1).expand(8)]
    found, same = ([v.detach().requires_grad_() for v in each] for each in (given, [v.contiguous() for v in given]))
    outputs = [norm.add_norm_op(*each, 1e-5, True)[1] for each in (found, same)]
    assert torch.equal(*outputs)
    d_out = torch.randn(5, 8, 3).to(HALF).transpose(1, 2)
    gradients = [torch.autograd.grad(out, each, d_out) for out, each in zip(outputs, (found, same), strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("part", [0, 1])
def test_norm_with_one_of_its_outputs_used(part):
    given = [torch.randn(4, 3, 8).to(HALF), torch.randn(4, 3, 8).to(HALF), torch.randn(8), torch.randn(8)]
    d_out = torch.randn(4, 3, 8).to(HALF)
    exact_in = [x.double().requires_grad_() for x in given]
    total = exact_in[0] + exact_in[1]
    exact = (total, torch.nn.functional.layer_norm(total, (8,), *exact_in[2:], 1e-5))[part]
    wanted = torch.autograd.grad(exact, exact_in, d_out.double(), materialize_grads=True)
    found_in = [x.requires_grad_() for x in given]
    found = torch.autograd.grad(norm.add_norm_op(*found_in, 1e-5, True)[part], found_in, d_out)
    for a, b in zip(found, wanted, strict=True):
        assert (a.double() - b).norm() <= BOUND[HALF] * b.norm()


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize(
    ("rows", "width", "hidden", "bias"), [(1, 8, 16, True), (50, 24, 100, True), (90, 16, 300, False)]
)
def test_gelu(rows, width, hidden, bias, dtype):
    check_gelu(rows, width, hidden, dtype, bias=bias)


def test_gelu_of_nothing():
    x, w = torch.randn(0, 3, 8, requires_grad=True), torch.randn(16, 8, requires_grad=True)
    out, _ = gelu.linear_gelu_op(x, w, None)
    assert out.shape == (0, 3, 16)
    assert torch.autograd.grad(out, w, out)[0].abs().sum() == 0


@pytest.mark.parametrize(
    ("length", "dtype"),
    [(1, HALF), (3, HALF), (4, torch.float32), (16, HALF), (20, HALF), (20, torch.float32), (33, HALF), (64, HALF)],
)
def test_short_axes(length, dtype):
    check([length] * 2, 2, 1, 16, dtype, across=True)
    check([3], length, 2, 16, dtype, across=False)


@pytest.mark.parametrize(("heads", "dim"), [(1, 8), (3, 24), (4, 32), (2, 48), (2, 64), (1, 128)])
def test_head_dimensions(heads, dim):
    check([1], 20, heads, dim, HALF, across=False)
    check([5], 3, heads, dim, HALF, across=True)


@pytest.mark.parametrize(("length", "dim"), [(65, 16), (100, 128), (200, 48), (256, 16)])
def test_axes_in_several_blocks_of_queries(length, dim):
    check([1], length, 1, dim, HALF, across=False)
    check([length, length - 60], 1, 1, dim, HALF, across=True)


@pytest.mark.parametrize("counts", [[3, 1, 5], [0, 2, 0, 7, 0], [20, 1, 17, 32], [36, 5], [1, 2, 1], [64, 3]])
def test_ragged_windows(counts):
    check(counts, 2, 1, 16, HALF, across=True)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("length", [3, 20, 70])
def test_pads_and_hidden_keys(length, across):
    """Windows with no real row and sequences with no key to look at give zeros, with zero gradients."""
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
@pytest.mark.parametrize("length", [64, 192])
def test_scores_far_from_zero(length, shift):
    """Log-sum-exps of -390 and +390, with an axis of 64 and 192 and a mask: where cuDNN gives NaN."""
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


def test_memory_that_is_not_contiguous():
    qkv = torch.randn(3, 96, 5, dtype=HALF).transpose(1, 2).requires_grad_()
    out = short_axis.attend(qkv, 2, False, 3)
    d_out = torch.randn(1, 1, 32, dtype=HALF).expand_as(out)
    (gradient,) = torch.autograd.grad(out, qkv, d_out)
    copy = qkv.detach().contiguous().requires_grad_()
    same = short_axis.attend(copy, 2, False, 3)
    assert torch.equal(out, same)
    assert torch.equal(gradient, torch.autograd.grad(same, copy, d_out.contiguous())[0])


@pytest.mark.parametrize("across", [False, True])
def test_nothing_outside_is_read_or_written(across):
    """Rows before and after the given ones hold NaN, and stay as they are."""
    whole = torch.full((12, 5, 96), math.nan, dtype=HALF)
    whole[4:9] = torch.randn(5, 5, 96)
    first = torch.tensor([0, 2, 5]) if across else None
    arguments = (2, across, 3, first, None, None)
    out, gradient = torch.full((12, 5, 32), 7, dtype=HALF), torch.full((12, 5, 96), 7, dtype=HALF)
    short_axis._launch("forward", [whole[4:9], out[4:9]], *arguments)
    short_axis._launch("backward", [whole[4:9], torch.ones(5, 5, 32, dtype=HALF), gradient[4:9]], *arguments)
    for x in (out, gradient):
        assert torch.isfinite(x).all()
        assert (x[:4] == 7).all()
        assert (x[9:] == 7).all()
