"""Helpers for kernels that use the matrix units and the tensor memory accelerator of Hopper GPUs (H100, H200)."""

import functools
from typing import Any

import torch
from torch import Tensor

INTERPRETED = 6  # programs in Triton's interpreter, which has no multiprocessors


def is_hopper(device: torch.device) -> bool:
    """Return whether a device is a Hopper GPU. AMD GPUs have other version numbers.

    Use ``get_device_properties``, a constant for ``torch.compile``. It would put ``get_device_capability`` into the
    graph.
    """
    if torch.version.hip is not None or not torch.cuda.is_available():
        return False
    found = torch.cuda.get_device_properties(device)
    return bool(found.major == 9 and found.minor == 0)


@functools.cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors, each of which runs one large program at a time."""
    if device.type != "cuda":
        return INTERPRETED
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def aligned(x: Tensor) -> Tensor:
    """Return a tensor as contiguous memory that starts at a multiple of 16 bytes, as :func:`tiles` needs."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % 16 else x


def tiles(matrix: Tensor, rows: int, columns: int) -> Any:
    """Describe an aligned matrix to the memory accelerator, which reads zeros beyond its borders."""
    return _descriptions().from_tensor(matrix, [rows, columns])


@functools.cache
def _descriptions() -> Any:
    """Return Triton's class of descriptors. A launch makes four, and importing it takes as long as making one."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor


def gluon_tiles(matrix: Tensor, rows: int, columns: int) -> Any:
    """Describe a matrix to a Gluon kernel, which also needs the layout of a tile in shared memory."""
    return _gluon_descriptions().from_tensor(matrix, [rows, columns], _on_chip(rows, columns, matrix.dtype))


@functools.cache
def _gluon_descriptions() -> Any:
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    return TensorDescriptor


@functools.cache
def _on_chip(rows: int, columns: int, dtype: torch.dtype) -> Any:
    """Return Gluon's layout of a tile. It is cached, because making four of them took half of the time of a launch."""
    from triton.experimental.gluon import language as gl

    kind = gl.bfloat16 if dtype == torch.bfloat16 else gl.float16
    return gl.NVMMASharedLayout.get_default_for([rows, columns], kind)
