"""The fast code of the model. It knows layers and tensors, and imports nothing of ``model/``.

Encoder, attention and objective use the names below and no others. Each function equals a plain formula, which stands
beside the call in ``model/``. A function without faster code for a case returns None or calls the layer itself, so the
formulas are the reference. ``model/live.py`` also uses ``graph.py`` (CUDA graphs) and ``eligible.py``.

======================== =====================================================================================
``linear``               ``layer(x)``
``mlp``                  ``down(gelu(up(x)))``, also without the last bias
``attend``               ``softmax(q k' / sqrt(E)) v`` along one short axis of the token grid
``sdpa``                 the same by torch's kernels, in a way that avoids their known bugs
``Residual``             ``x + branch``, added together with the next norm
``next_block_adds_bias`` whether the next block may add the last bias of an MLP
``run_blocks``           all blocks and the last norm without calling modules, for inference
``BlockParts``           the layers of one block, for ``run_blocks``
``masked_linear``        ``where(masked, mask_token, layer(x))``
``row_difference``       ``table[one] - table[other]``
``Compilable``           the base of modules that can be compiled in parts
``compile_model``        compiles all such modules of a model
``add_noise``            ``x + ratio * deviation * noise``, for the noise of fine-tuning
``constant``             numbers as a tensor of a device
``Capture``              a computation as CUDA graphs
``on_its_way``           ``x.cpu()``, which waits for no later work
``one_behind``           results of an iterator, each when the next one has begun
``packed``               a context in which weights are stored in the order that a CPU reads
``use``, ``choose``      the one switch: ``"auto"``, ``"stock attention"`` or ``"stock"``
======================== =====================================================================================

Profilers show our kernels by the names that ``repr=`` gives them. A ``repr`` is not part of the key of Triton's cache:
kernels that were compiled before a rename keep their old name.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cerebro_eeg.batch import Layout
from cerebro_eeg.fast import eligible, inference_cpu, inference_cuda
from cerebro_eeg.fast.attention import attend
from cerebro_eeg.fast.block_parts import BlockParts
from cerebro_eeg.fast.capture import Capture, can_capture, capturing, constant, has_graphs, on_its_way, one_behind
from cerebro_eeg.fast.compile import Compilable, compile_model
from cerebro_eeg.fast.eligible import choose, use
from cerebro_eeg.fast.embedding import masked_linear, row_difference
from cerebro_eeg.fast.linear_layer import linear, packed
from cerebro_eeg.fast.mlp_layer import mlp
from cerebro_eeg.fast.noise import add_noise
from cerebro_eeg.fast.residual import Residual, next_block_adds_bias
from cerebro_eeg.fast.torch_attention import sdpa

__all__ = [
    "BlockParts",
    "Capture",
    "Compilable",
    "Residual",
    "add_noise",
    "attend",
    "can_capture",
    "capturing",
    "choose",
    "compile_model",
    "constant",
    "has_graphs",
    "linear",
    "masked_linear",
    "mlp",
    "next_block_adds_bias",
    "on_its_way",
    "one_behind",
    "packed",
    "row_difference",
    "run_blocks",
    "sdpa",
    "use",
]


def run_blocks(
    blocks: Sequence[nn.Module],
    norm: nn.Module | None,
    x_RND: Tensor,
    layout: Layout,
    dtype: torch.dtype,
    own: bool,
    finish: inference_cpu.Finish,
) -> Tensor | None:
    """Return the tokens after all blocks and the last ``norm``, faster than by modules; None where modules must run.

    On a GPU either all blocks run without modules or none does: one block that has a hook or an adapter, or is of
    another kind, makes all blocks run as modules. With ``own`` the tokens may be overwritten. On a CPU the blocks run
    on a few windows at a time, and ``finish`` completes each piece.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    if eligible.on_gpu(x_RND):
        return inference_cuda.run_blocks(blocks, norm, x_RND, layout, dtype, own)
    return inference_cpu.run_blocks(blocks, norm, x_RND, layout, finish)
