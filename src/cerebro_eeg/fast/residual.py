"""Residual, the tokens together with a branch that is still to be added to them.

The textbook computes ``x = x + branch`` and then ``y = norm(x)``. On a GPU each of these is a pass over memory. Here
the addition is deferred to the following norm, and one kernel does both. flash-attention's blocks do the same, with
the names ``residual`` and ``prenorm``. The bias of the last linear layer of a branch may be deferred as well, because
the backward pass of the norm sums its gradient on the way. The same holds for the factors that drop path multiplies a
branch with. The first norm of the next block adds a block's last branch.

Legend: **R** rows (channels of all windows), **N** tokens of a row, **D** width.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from cerebro_eeg.fast import eligible, mlp_layer
from cerebro_eeg.fast.norm import add_norm_op, can_fuse


class Residual(NamedTuple):
    """The residual stream between two norms: ``x + factor * (pending + bias)``."""

    x_RND: Tensor
    pending_RND: Tensor | None = None
    """The output of a branch, which the next norm adds."""
    bias_D: Tensor | None = None
    """The bias of the last linear layer of the branch, if ``pending_RND`` does not contain it."""
    factor_R: Tensor | None = None
    """Drop path's factor of each row, if ``pending_RND`` does not contain it. It has no gradient."""

    def total(self) -> Tensor:
        """Return the sum, the textbook's ``x``."""
        if self.pending_RND is None:
            return self.x_RND
        branch_RND = self.pending_RND
        if self.bias_D is not None:
            branch_RND = branch_RND + self.bias_D.to(self.x_RND.dtype)
        if self.factor_R is not None:
            branch_RND = branch_RND * self.factor_R.to(branch_RND.dtype)[:, None, None]
        return self.x_RND + branch_RND

    def norm(self, layer: nn.Module) -> tuple["Residual", Tensor]:
        """Return the stream with everything added, and its norm by ``layer``.

        The kernel also takes a stream without a pending branch, because autocast would compute torch's norm in float32
        between two casts. With gradients the kernel copies ``x``, because its backward pass adds the gradients of ``x``
        and of its norm.
        """
        x_RND, pending_RND, bias_D, factor_R = self
        like_RND = x_RND if pending_RND is None else pending_RND
        if not isinstance(layer, nn.LayerNorm) or not can_fuse(x_RND, like_RND, layer):
            x_RND = self.total()
            return Residual(x_RND), layer(x_RND)
        keep = torch.is_grad_enabled()
        given = x_RND, pending_RND, layer.weight, layer.bias, layer.eps, keep, bias_D, factor_R
        total_RND, out_RND, _ = add_norm_op(*given)
        return Residual(x_RND if pending_RND is None and not keep else total_RND), out_RND

    def plus(self, branch_RND: Tensor, bias_D: Tensor | None = None, factor_R: Tensor | None = None) -> "Residual":
        """Return the stream with one more branch. The norm before the branch has added all earlier ones."""
        return Residual(self.x_RND, branch_RND, bias_D, factor_R)

    def norm_adds_bias(
        self, layer: nn.Module, branch: nn.Module, kinds: tuple[type[nn.Module], ...], last: nn.Module
    ) -> bool:
        """Return whether the norm ``layer`` after a branch may add the bias of the branch's ``last`` linear layer.

        It may then multiply by drop path's factors, too.
        """
        x_RND = self.x_RND
        as_product = eligible.compute_dtype(x_RND) == x_RND.dtype  # the branch has the precision of x
        return as_product and can_fuse(x_RND, x_RND, layer) and eligible.may_defer_bias(branch, last, kinds)


def next_block_adds_bias(
    x_RND: Tensor,
    block: tuple[nn.Module, type[nn.Module]],
    branch: tuple[nn.Module, type[nn.Module]],
    up: nn.Linear,
    down: nn.Linear,
) -> bool:
    """Return whether the first norm of the next block may add the last bias of this block's MLP.

    It may then multiply by drop path's factors, too. Block and branch come with the classes that they must have.
    """
    if not eligible.weights_stay(*block) or not eligible.plain(*branch):
        return False
    return eligible.compute_dtype(x_RND) == x_RND.dtype and mlp_layer.can_fuse(x_RND, up, down)
