"""Residual: tokens, and the branch that has yet to be added to them.

The textbook adds each branch at once: ``x = x + branch`` and then ``y = norm(x)``. On a GPU both are passes over
memory. So the addition waits for the norm behind it, and one kernel does both; flash-attention's blocks do the same
(``residual`` and ``prenorm`` there). The bias of the linear layer that ends a branch may wait as well: the norm's
backward pass sums its gradient on the way. A block passes its last branch on to the first norm of the next block.

Legend: **R** rows (channels of all windows), **N** tokens of a row, **D** width.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from cerebro_eeg.fast import eligible, mlp_layer
from cerebro_eeg.fast.norm import add_norm_op, can_fuse


class Residual(NamedTuple):
    """The residual stream between two norms: ``x + pending + bias``."""

    x_RND: Tensor
    pending_RND: Tensor | None = None
    """The output of a branch that the next norm adds."""
    bias_D: Tensor | None = None
    """The bias of the linear layer that ended the branch, where it is not in ``pending_RND`` yet."""

    def total(self) -> Tensor:
        """Return the sum as the textbook has it."""
        if self.pending_RND is None:
            return self.x_RND
        if self.bias_D is None:
            return self.x_RND + self.pending_RND
        return self.x_RND + (self.pending_RND + self.bias_D.to(self.x_RND.dtype))

    def norm(self, layer: nn.Module) -> tuple["Residual", Tensor]:
        """Return the stream with everything added, and ``layer`` of it.

        The kernel also takes a stream without a pending branch: autocast would compute torch's norm in float32, between
        two casts. With gradients it copies ``x``, because its backward pass adds up the gradients of ``x`` and of its
        norm.
        """
        x_RND, pending_RND, bias_D = self
        like_RND = x_RND if pending_RND is None else pending_RND
        if not isinstance(layer, nn.LayerNorm) or not can_fuse(x_RND, like_RND, layer):
            x_RND = self.total()
            return Residual(x_RND), layer(x_RND)
        keep = torch.is_grad_enabled()
        total_RND, out_RND, _ = add_norm_op(x_RND, pending_RND, layer.weight, layer.bias, layer.eps, keep, bias_D)
        return Residual(x_RND if pending_RND is None and not keep else total_RND), out_RND

    def plus(self, branch_RND: Tensor, bias_D: Tensor | None = None) -> "Residual":
        """Return the stream with one more branch. The norm before it has added all others."""
        return Residual(self.x_RND, branch_RND, bias_D)

    def norm_adds_bias(
        self, layer: nn.Module, branch: nn.Module, kinds: tuple[type[nn.Module], ...], last: nn.Module
    ) -> bool:
        """Return whether a branch may leave the bias of its ``last`` linear layer to this norm behind it."""
        x_RND = self.x_RND
        as_product = eligible.compute_dtype(x_RND) == x_RND.dtype  # the branch then has the precision of x
        return as_product and can_fuse(x_RND, x_RND, layer) and eligible.may_defer_bias(branch, last, kinds)


def next_block_adds_bias(
    x_RND: Tensor,
    block: tuple[nn.Module, type[nn.Module]],
    branch: tuple[nn.Module, type[nn.Module]],
    up: nn.Linear,
    down: nn.Linear,
) -> bool:
    """Return whether the MLP of a block, its last branch, may leave its bias to the norm of the next block.

    Block and branch come with the classes that they must be of.
    """
    if not eligible.weights_stay(*block) or not eligible.plain(*branch):
        return False
    return eligible.compute_dtype(x_RND) == x_RND.dtype and mlp_layer.can_fuse(x_RND, up, down)
