"""How the model is made fast. It knows layers and tensors, nothing of the model above it.

The model asks for the names below and no others. Each equals a plain formula, which stands beside the call in
``model/``. A function with nothing faster to offer returns None, or runs the layer itself, so the formulas are the
reference.

=================== ===================================================================================
``linear``          ``layer(x)``
``mlp``             ``down(gelu(up(x)))``
``attend``          ``softmax(q k' / sqrt(E)) v`` along one short axis of the token grid
``sdpa``            the same by torch's kernels, around their faults
``Residual``        ``x + branch``, added together with the next norm
``run_blocks``      a whole stack of blocks without its modules, for inference
``masked_linear``   ``where(masked, mask_token, layer(x))``
``row_difference``  ``table[one] - table[other]``
``Compilable``      the base of modules that ``compile_model`` compiles in parts
``packed``          a context in which a CPU reads weights in its own order
``use``, ``choose`` the one switch: ``"auto"``, ``"stock attention"`` or ``"stock"``
=================== ===================================================================================
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cerebro_eeg.batch import Layout
from cerebro_eeg.fast import eligible, inference_cpu, inference_cuda
from cerebro_eeg.fast.attention import attend
from cerebro_eeg.fast.block_parts import BlockParts
from cerebro_eeg.fast.compile import Compilable, compile_model
from cerebro_eeg.fast.eligible import choose, use
from cerebro_eeg.fast.embedding import masked_linear, row_difference
from cerebro_eeg.fast.linear_layer import linear, packed
from cerebro_eeg.fast.mlp_layer import mlp
from cerebro_eeg.fast.residual import Residual, next_block_adds_bias
from cerebro_eeg.fast.torch_attention import sdpa

__all__ = [
    "BlockParts",
    "Compilable",
    "Residual",
    "attend",
    "choose",
    "compile_model",
    "linear",
    "masked_linear",
    "mlp",
    "next_block_adds_bias",
    "packed",
    "row_difference",
    "run_blocks",
    "sdpa",
    "use",
]


def run_blocks(
    blocks: Sequence[nn.Module], norm: nn.Module | None, x_RND: Tensor, layout: Layout, dtype: torch.dtype, own: bool
) -> Tensor | None:
    """Return the tokens behind all blocks and the last ``norm``, computed without modules; None where modules must run.

    It is the whole stack or nothing: one block that is hooked, adapted or of another kind makes all of them run as
    modules. With ``own`` the tokens may be overwritten.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    if eligible.on_gpu(x_RND):
        return inference_cuda.run_blocks(blocks, norm, x_RND, layout, dtype, own)
    return inference_cpu.run_blocks(blocks, norm, x_RND, layout)
