"""The kernels of an MLP on a GPU: which of them computes what, with which tiles, and how they are launched.

On Hopper GELU and its gradient are computed within the products beside them. Many tokens take the Gluon kernels of
``gluon/mlp.py``; few tokens, and widths that do not fit these, take the plain Triton ones of ``triton/mlp.py``. Both
compute the same. On other GPUs GELU is a pass over memory at the speed of a copy. Its backward pass also gives the sum
over all tokens, which a bias before GELU needs. Rules decide between them, never timing.

Legend: **R** rows, **N** tokens of a row, **T** tokens of all rows, **D** width, **H** hidden width, **P** partial
sums.
"""

import functools
import importlib.util
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cerebro_eeg.fast import hopper

BLOCK = 2048  # values of a program, the best of a sweep on an H200 (benchmarks/README.md)
BLOCK_T, BLOCK_H, STEPS = 8, 128, 16


def run_gelu(x: Tensor, out: Tensor) -> None:
    """GELU of ``x`` into ``out``, which may be ``x`` itself."""
    if x.numel():
        from cerebro_eeg.fast.triton import mlp

        with torch.cuda.device_of(x):
            mlp.gelu[(-(-x.numel() // BLOCK),)](x, out, x.numel(), BLOCK=BLOCK)


def run_gelu_backward(x_RNH: Tensor, d_out_RNH: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of GELU's input, and its sum over all tokens in float32."""
    x_RNH, d_out_RNH = x_RNH.contiguous(), d_out_RNH.contiguous()
    d_x_RNH, hidden = torch.empty_like(x_RNH), x_RNH.shape[-1]
    rows = x_RNH.numel() // max(1, hidden)
    programs = -(-rows // (BLOCK_T * STEPS))
    sums_PH = x_RNH.new_empty(programs, hidden, dtype=torch.float32)
    if x_RNH.numel():
        from cerebro_eeg.fast.triton import mlp

        with torch.cuda.device_of(x_RNH):
            mlp.gelu_backward[(programs, -(-hidden // BLOCK_H))](
                x_RNH, d_out_RNH, d_x_RNH, sums_PH, rows, hidden, BLOCK_T=BLOCK_T, BLOCK_H=BLOCK_H, STEPS=STEPS
            )
    return d_x_RNH, sums_PH.sum(0)


GLUON = ("3.6.", "3.7.")  # versions of Triton whose Gluon, still experimental, compiles gluon/mlp.py
BLOCK_K = 64
WIDEST = 1024  # values of a token, whose chunks are written out in Gluon's code


class ProductTile(NamedTuple):
    """Of a product in Triton."""

    rows: int
    columns: int
    warps: int
    stages: int


UP, DOWN = (
    ProductTile(128, 256, 8, 4),
    ProductTile(128, 128, 4, 3),
)  # the best of sweeps on an H200 (benchmarks/README.md)


class Form(NamedTuple):
    """How a program of ``gluon/mlp.py`` is laid out."""

    shared: bool
    """The weight is read along with the rows, for both consumers; else it stays on chip."""
    columns: int
    stages: int
    """Places of the ring; an even number, so that each consumer has its own where a place holds a whole tile."""
    parts: int
    """Chunks in each."""
    places: int
    """Pieces of a tile that are on their way out, for each consumer."""


def form(width: int, hidden: int) -> Form | None:
    """The rule, by what fits on chip; None for the Triton kernels. Swept on an H200 for 192, 576 and 768."""
    if width % BLOCK_K or hidden % 128 or width > WIDEST:
        return None
    if width <= 192:
        return Form(False, 128, 4, width // BLOCK_K, 2)
    if width <= 576:
        return Form(False, 128, 6, 1, 2)
    return Form(True, 256, 3, 1, 4) if hidden % 256 == 0 else None


def by_gluon(x_TD: Tensor, width: int, hidden: int) -> Form | None:
    """The form, where there are tokens for all multiprocessors and this Triton knows Gluon."""
    if not x_TD.is_cuda or len(x_TD) < filling(x_TD.device) or not speaks_gluon():
        return None
    return form(width, hidden)


def filling(device: torch.device) -> int:
    """Tokens from which on every multiprocessor has a tile of 64."""
    return 64 * hopper.processors(device)


@functools.cache
def speaks_gluon() -> bool:
    """Whether Triton has Gluon, and is of a version that the kernels have been compiled with."""
    import triton

    return triton.__version__.startswith(GLUON) and importlib.util.find_spec("triton.experimental.gluon") is not None


def _programs(device: torch.device, tokens: int, hidden: int, of: Form) -> tuple[int, int]:
    """Slabs of columns, and how many programs share the tokens of each."""
    slabs = hidden // of.columns
    tiles = -(-tokens // (128 if of.shared else 64))
    return slabs, max(1, min(hopper.processors(device) // slabs, tiles))


def constants(of: Form, width: int) -> dict[str, Any]:
    return {
        "SHARED": of.shared,
        "K": width,
        "COLUMNS": of.columns,
        "STAGES": of.stages,
        "PARTS": of.parts,
        "PLACES": of.places,
        "num_warps": 4,
        "maxnreg": 168,  # of 384 threads; consumers take over what producers give away
    }


def up(x_TD: Tensor, weight_HD: Tensor, bias_H: Tensor | None, slope_TH: Tensor | None, out_TH: Tensor) -> None:
    """Write GELU of x W + b, and its slope, where there is a place for it."""
    hidden, width = weight_HD.shape
    tokens, bias = len(x_TD), x_TD if bias_H is None else bias_H.contiguous()  # something to point to
    slope = out_TH if slope_TH is None else slope_TH
    flags = {"BIAS": bias_H is not None, "KEEP": slope_TH is not None}
    of = by_gluon(x_TD, width, hidden)
    with torch.cuda.device_of(x_TD):
        if of is not None:
            from cerebro_eeg.fast.gluon import mlp as mlp_hopper

            slabs, workers = _programs(x_TD.device, tokens, hidden, of)
            mlp_hopper.up[(slabs * workers,)](
                hopper.gluon_tiles(x_TD, 64, 64),
                hopper.gluon_tiles(weight_HD, of.columns, 64),
                bias,
                hopper.gluon_tiles(slope, 64, 64),
                hopper.gluon_tiles(out_TH, 64, 64),
                tokens,
                slabs,
                **flags,
                **constants(of, width),
            )
            return
        from cerebro_eeg.fast.triton import mlp as mlp_kernels

        tiles = -(-tokens // UP.rows) * -(-hidden // UP.columns)
        mlp_kernels.up[(min(tiles, hopper.processors(x_TD.device)),)](
            hopper.tiles(x_TD, UP.rows, BLOCK_K),
            hopper.tiles(weight_HD, UP.columns, BLOCK_K),
            bias,
            hopper.tiles(slope, UP.rows, UP.columns // 2),
            hopper.tiles(out_TH, UP.rows, UP.columns // 2),
            tokens,
            hidden,
            K=width,
            BLOCK_T=UP.rows,
            BLOCK_H=UP.columns,
            BLOCK_K=BLOCK_K,
            **flags,
            num_warps=UP.warps,
            num_stages=UP.stages,
        )


def down_backward(d_y_TD: Tensor, weight_DH: Tensor, slope_TH: Tensor, d_before_TH: Tensor) -> Tensor:
    """Write (d_y W) times the slope; return sums of it over some tokens each, float32 (P, H)."""
    width, hidden = weight_DH.shape
    tokens = len(d_y_TD)
    of = by_gluon(d_y_TD, width, hidden)
    with torch.cuda.device_of(d_y_TD):
        if of is not None:
            from cerebro_eeg.fast.gluon import mlp as mlp_hopper

            slabs, workers = _programs(d_y_TD.device, tokens, hidden, of)
            partial = -(-tokens // 128) * 2 if of.shared else workers * 64
            sums_PH = slope_TH.new_empty(partial, hidden, dtype=torch.float32)
            mlp_hopper.down_backward[(slabs * workers,)](
                hopper.gluon_tiles(d_y_TD, 64, 64),
                hopper.gluon_tiles(weight_DH, 64, of.columns),
                hopper.gluon_tiles(slope_TH, 64, 64),
                hopper.gluon_tiles(d_before_TH, 64, 64),
                sums_PH,
                tokens,
                slabs,
                **constants(of, width),
            )
            return sums_PH
        from cerebro_eeg.fast.triton import mlp as mlp_kernels

        blocks = -(-tokens // DOWN.rows)
        sums_PH = slope_TH.new_empty(blocks, hidden, dtype=torch.float32)
        mlp_kernels.down_backward[(blocks * -(-hidden // DOWN.columns),)](
            hopper.tiles(d_y_TD, DOWN.rows, BLOCK_K),
            hopper.tiles(weight_DH, BLOCK_K, DOWN.columns),
            hopper.tiles(slope_TH, DOWN.rows, DOWN.columns),
            hopper.tiles(d_before_TH, DOWN.rows, DOWN.columns),
            sums_PH,
            hidden,
            K=width,
            BLOCK_T=DOWN.rows,
            BLOCK_H=DOWN.columns,
            BLOCK_K=BLOCK_K,
            STAGES=DOWN.stages,
            num_warps=DOWN.warps,
        )
    return sums_PH
