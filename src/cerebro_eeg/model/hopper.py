"""What kernels need that are written for Hopper's matrix units and memory accelerator."""

import functools
from typing import Any

import torch
from torch import Tensor

INTERPRETED = 6  # programs of Triton's interpreter, where there are no multiprocessors


def is_hopper(device: torch.device) -> bool:
    """Whether a device has them. AMD counts its versions differently.

    Asked for in a way that ``torch.compile`` takes for a constant, which ``get_device_capability`` is not to it.
    """
    if torch.version.hip is not None or not torch.cuda.is_available():
        return False
    found = torch.cuda.get_device_properties(device)
    return bool(found.major == 9 and found.minor == 0)


def processors(device: torch.device) -> int:
    """How many programs run at a time where one fills a multiprocessor."""
    if device.type != "cuda":
        return INTERPRETED
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def aligned(x: Tensor) -> Tensor:
    """In one piece that starts where :func:`tiles` may start."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % 16 else x


def tiles(x: Tensor, rows: int, columns: int) -> Any:
    """An aligned tensor's description, as a matrix, to the memory accelerator, which gives zeros beyond its borders."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(x.view(-1, x.shape[-1]), [rows, columns])


def gluon_tiles(x: Tensor, rows: int, columns: int) -> Any:
    """The same for a kernel in Gluon, which asks how a tile lies on chip."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    matrix = x.view(-1, x.shape[-1])
    return TensorDescriptor.from_tensor(matrix, [rows, columns], _on_chip(rows, columns, x.dtype))


@functools.cache
def _on_chip(rows: int, columns: int, dtype: torch.dtype) -> Any:
    """Gluon's layout of a tile, which is kept: every launch asks for four, and making them took half of its Python."""
    from triton.experimental.gluon import language as gl

    kind = gl.bfloat16 if dtype == torch.bfloat16 else gl.float16
    return gl.NVMMASharedLayout.get_default_for([rows, columns], kind)
