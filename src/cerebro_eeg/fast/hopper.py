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


@functools.cache
def processors(device: torch.device) -> int:
    """How many programs run at a time where one fills a multiprocessor; torch is asked once for each device."""
    if device.type != "cuda":
        return INTERPRETED
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def aligned(x: Tensor) -> Tensor:
    """In one piece that starts where :func:`tiles` may start."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % 16 else x


def tiles(matrix: Tensor, rows: int, columns: int) -> Any:
    """An aligned matrix' description to the memory accelerator, which gives zeros beyond its borders."""
    return _descriptions().from_tensor(matrix, [rows, columns])


@functools.cache
def _descriptions() -> Any:
    """Triton's class of them, which is kept: a launch makes four, and importing it takes as long as making one."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor


def gluon_tiles(matrix: Tensor, rows: int, columns: int) -> Any:
    """The same for a kernel in Gluon, which asks how a tile lies on chip."""
    return _gluon_descriptions().from_tensor(matrix, [rows, columns], _on_chip(rows, columns, matrix.dtype))


@functools.cache
def _gluon_descriptions() -> Any:
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    return TensorDescriptor


@functools.cache
def _on_chip(rows: int, columns: int, dtype: torch.dtype) -> Any:
    """Gluon's layout of a tile, which is kept: every launch asks for four, and making them took half of its Python."""
    from triton.experimental.gluon import language as gl

    kind = gl.bfloat16 if dtype == torch.bfloat16 else gl.float16
    return gl.NVMMASharedLayout.get_default_for([rows, columns], kind)
