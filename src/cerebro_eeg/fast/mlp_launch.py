"""Choice and launch of the kernels of an MLP on a GPU.

On Hopper GELU and its gradient are computed within the adjacent products. Many tokens use the Gluon kernels of
``gluon/mlp.py``. Few tokens, and widths that do not fit those, use the Triton kernels of ``triton/mlp.py``, which
compute the same. On other GPUs GELU is a pass over memory at the speed of a copy. Its backward pass also returns the
sum over all tokens, the gradient of a bias before GELU. Rules choose the kernel, never measured times, so that equal
shapes always run equal code.

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
    """Write GELU of ``x`` into ``out``, which may be ``x`` itself."""
    if x.numel():
        from cerebro_eeg.fast.triton import mlp

        with torch.cuda.device_of(x):
            mlp.gelu[(-(-x.numel() // BLOCK),)](x, out, x.numel(), BLOCK=BLOCK)


def run_gelu_backward(x_RNH: Tensor, d_out_RNH: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of GELU's input, and its sum over all tokens in float32."""
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


# Gluon is experimental. These versions of Triton compile gluon/mlp.py; other versions use the Triton kernels.
# test_the_kernels_in_gluon_compile_for_hopper compiles them without a GPU.
GLUON = ("3.6.", "3.7.")
BLOCK_K = 64
WIDEST = 1024  # largest width of tokens: Gluon unrolls the loop over their chunks


class ProductTile(NamedTuple):
    """The tile of a product in Triton.

    It must fit into shared memory: 227 KiB on Hopper. ``metadata.shared`` of a compilation without a GPU tells its
    size.
    """

    rows: int
    columns: int
    warps: int
    stages: int


UP, DOWN = (
    ProductTile(128, 256, 8, 4),
    ProductTile(128, 128, 4, 3),
)  # the best of sweeps on an H200 (benchmarks/README.md)


class Form(NamedTuple):
    """The layout of a program of ``gluon/mlp.py``."""

    shared: bool
    """Whether the weight is read again with each tile, for both consumers; else it stays in shared memory."""
    columns: int
    stages: int
    """Places of the ring. An even number gives each consumer its own places if a place holds a whole tile."""
    parts: int
    """Chunks per place."""
    places: int
    """Pieces of a tile that each consumer writes to memory at the same time."""


def form(width: int, hidden: int) -> Form | None:
    """Return the form that fits into shared memory, or None for the Triton kernels.

    The numbers for widths of 192, 576 and 768 were the best of sweeps on an H200.
    """
    if width % BLOCK_K or hidden % 128 or width > WIDEST:
        return None
    if width <= 192:
        return Form(False, 128, 4, width // BLOCK_K, 2)
    if width <= 576:
        return Form(False, 128, 6, 1, 2)
    return Form(True, 256, 3, 1, 4) if hidden % 256 == 0 else None


def by_gluon(x_TD: Tensor, width: int, hidden: int) -> Form | None:
    """Return the form if there are enough tokens for all multiprocessors and this Triton has Gluon, else None."""
    if not x_TD.is_cuda or len(x_TD) < filling(x_TD.device) or not speaks_gluon():
        return None
    return form(width, hidden)


def filling(device: torch.device) -> int:
    """Return the number of tokens with which every multiprocessor has a tile of 64."""
    return 64 * hopper.processors(device)


@functools.cache
def speaks_gluon() -> bool:
    """Return whether Triton has Gluon, in a version that is known to compile the kernels."""
    import triton

    return triton.__version__.startswith(GLUON) and importlib.util.find_spec("triton.experimental.gluon") is not None


def _programs(device: torch.device, tokens: int, hidden: int, of: Form) -> tuple[int, int]:
    """Return the number of slabs of columns, and the number of programs that share the tokens of each slab."""
    slabs = hidden // of.columns
    tiles = -(-tokens // (128 if of.shared else 64))
    return slabs, max(1, min(hopper.processors(device) // slabs, tiles))


def constants(of: Form, width: int) -> dict[str, Any]:
    """Return the compile-time constants of a Gluon kernel."""
    return {
        "SHARED": of.shared,
        "K": width,
        "COLUMNS": of.columns,
        "STAGES": of.stages,
        "PARTS": of.parts,
        "PLACES": of.places,
        "num_warps": 4,
        "maxnreg": 168,  # per thread of 384; consumers take over registers that producers release
    }


def up(x_TD: Tensor, weight_HD: Tensor, bias_H: Tensor | None, slope_TH: Tensor | None, out_TH: Tensor) -> None:
    """Write GELU of x W + b and, if the caller passes a tensor for it, GELU's slope."""
    hidden, width = weight_HD.shape
    tokens, bias = len(x_TD), x_TD if bias_H is None else bias_H.contiguous()  # something to point to
    slope = out_TH if slope_TH is None else slope_TH
    flags = {"BIAS": bias_H is not None, "KEEP": slope_TH is not None}
    of = by_gluon(x_TD, width, hidden)
    with torch.cuda.device_of(x_TD):
        if of is not None:
            from cerebro_eeg.fast.gluon import mlp as gluon_mlp

            slabs, workers = _programs(x_TD.device, tokens, hidden, of)
            gluon_mlp.up[(slabs * workers,)](
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
    """Write (d_y W) times the slope, and return its sums over parts of the tokens, float32 (P, H)."""
    width, hidden = weight_DH.shape
    tokens = len(d_y_TD)
    of = by_gluon(d_y_TD, width, hidden)
    with torch.cuda.device_of(d_y_TD):
        if of is not None:
            from cerebro_eeg.fast.gluon import mlp as gluon_mlp

            slabs, workers = _programs(d_y_TD.device, tokens, hidden, of)
            partial = -(-tokens // 128) * 2 if of.shared else workers * 64
            sums_PH = slope_TH.new_empty(partial, hidden, dtype=torch.float32)
            gluon_mlp.down_backward[(slabs * workers,)](
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
