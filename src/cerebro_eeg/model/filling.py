"""Filling in: what a pre-trained model makes of tokens that the caller hides, in place of the random masks of training.

Legend: **R** rows, **N** tokens of a row, **L** values in a patch.
"""

import torch
from torch import Tensor

from cerebro_eeg.batch import Batch
from cerebro_eeg.model.masked import MaskedCerebro


@torch.no_grad()
def fill_in(model: MaskedCerebro, batch: Batch, hidden_RN: Tensor) -> Tensor:
    """Return the patches (R, N, L) that the model predicts while those of ``hidden_RN`` are hidden from it.

    They are on the scale of the model's own patches: z-scored, unless its config says otherwise. The model must be in
    evaluation mode, or drop path draws random numbers.
    """
    patches = model.encoder.cut(batch)
    if model.decoder is None:
        x_RND = model.encoder.run(model.encoder.tokens(patches, hidden_RN), patches.layout, carried=True)
    else:
        visible_RND = model._encode_visible(patches, hidden_RN)
        x_RND = model._decode(visible_RND, patches, hidden_RN, model.decoder)
    found: Tensor = model.reconstruct(x_RND).to(patches.values_RNL.dtype)
    return found
