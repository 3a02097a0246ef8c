"""The tensors that the header of a checkpoint describes, with their shapes, before anything is allocated.

Loading compares a file with this list, so that a hostile or wrong config cannot build a huge model. Saving compares a
model with it, so that no file is written that could not be loaded again.
"""

import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cerebro_eeg.config import ModelConfig, ReadoutConfig
from cerebro_eeg.errors import CheckpointError

if TYPE_CHECKING:
    from cerebro_eeg.model.checkpoint import Header

Shapes = Mapping[str, tuple[int, ...]]
ADAPTERS = ("base_layer.", "lora_", "modules_to_save.", "ia3_", "vera_", "oft_", "hada_", "original_module.")
"""Parts of the names of tensors that adapters of peft add."""
HEAD = ("final_layer.", "readout.")
HEADS = (*HEAD, "reconstruct.", "further.")
"""The last layers. A file may lack them; they are then new, and the report says so."""


def describe(header: "Header") -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor of the model that a header describes. The model is made without memory."""
    from cerebro_eeg.model.encoder import Encoder
    from cerebro_eeg.model.further_targets import FurtherTargets
    from cerebro_eeg.model.masked import Decoder
    from cerebro_eeg.model.readouts import Readout, width_of

    model, objective, head = header.model, header.objective, header.head
    whole = nn.ModuleDict()
    with torch.device("meta"):
        whole["encoder"] = Encoder(model)
        width = model.width
        if (decoder := decoder_config(header)) is not None:
            whole["decoder"], width = Decoder(decoder, model.width), decoder.width
        if objective is not None:
            whole["reconstruct"] = nn.Linear(width, model.patches.size, bias=model.bias)
            if objective.further:
                whole["further"] = FurtherTargets(model, objective, width)
        if head is not None:
            whole["final_layer"] = nn.Linear(width_of(head.readout, model), head.n_outputs, bias=model.bias)
            if head.readout != ReadoutConfig():
                whole["readout"] = Readout(head.readout, model)
    shapes = {name: tuple(tensor.shape) for name, tensor in whole.state_dict().items()}
    return {**shapes, "encoder.electrodes": (len(header.electrodes) + 1, model.width)}


def misfit(header: "Header", shapes: Shapes) -> str | None:
    """Return the first contradiction between config and tensors, or None."""
    if found := _unlike(shapes, _few(header)):  # these bound every size, so that the whole list can be made
        return found
    decoder = decoder_config(header)
    blocks = header.model.depth + (0 if decoder is None else decoder.depth)
    if blocks > len(shapes):
        return f"it has {len(shapes)} tensors for {blocks} blocks"
    expected = describe(header)
    optional = [name for name in expected if name.startswith(HEADS) and name not in shapes]
    further = [name for name in shapes if name.startswith("encoder.") and name not in expected]
    unlike = _unlike(shapes, {name: shape for name, shape in expected.items() if name not in optional})
    return unlike or (f"{further[0]} is not part of it" if further else None)


def refusal(header: "Header", tensors: Mapping[str, Tensor]) -> str | None:
    """Return why a file of these tensors could not be loaded again, with advice; None if it could."""
    expected = describe(header)
    if header.head is not None and not any(name.startswith(HEAD) for name in tensors):
        expected = {name: shape for name, shape in expected.items() if not name.startswith(HEAD)}
    further = [name for name in tensors if name not in expected]
    if adapted(further):
        return f"it has adapters that are not merged ({further[0]}); save the model that merge_and_unload() returns"
    if any("parametrizations." in name for name in further):
        return f"it has a parametrization ({further[0]}); use torch.nn.utils.parametrize.remove_parametrizations first"
    if any("_orig_mod." in name for name in further):
        return f"torch.compile has replaced a part of it ({further[0]}); put the part back, and call part.compile()"
    unlike = _unlike({name: tuple(tensor.shape) for name, tensor in tensors.items()}, expected)
    whole = [name for name, tensor in tensors.items() if not tensor.is_floating_point()]
    if further or unlike or whole:
        what = f"{further[0]} is not part of it" if further else unlike or f"{whole[0]} is {tensors[whole[0]].dtype}"
        advice = "use reset_head for a new head" if "final_layer." in what else "put its own parts back"
        return f"it is not the one that its config describes: {what}; {advice}"
    if (broken := first_broken(tensors)) is not None:
        return f"its weights hold NaN or infinity, first in {broken}; go back to weights that are sound"
    return None


def adapted(names: Iterable[str]) -> bool:
    """Return whether adapters, such as those of peft, have added tensors of these names."""
    return any(f".{part}" in f".{name}" for name in names for part in ADAPTERS)


def first_broken(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor that holds NaN or infinity; None if all are finite."""
    for name, tensor in tensors.items():
        known = tensor.float() if tensor.dtype.itemsize == 1 else tensor  # isfinite does not know 8-bit floats
        if not bool(torch.isfinite(known).all()):
            return name
    return None


def check_results(results: NDArray[np.float32], module: nn.Module) -> None:
    """Raise an error for results that are NaN or infinite. Windows are finite, so the weights must be at fault."""
    if not np.isfinite(results).all():
        broken = first_broken(module.state_dict())
        reason = "values too large for its precision; use float32 weights: model.float()"
        if broken is not None:
            reason = f"weights that are so themselves, first in {broken}; load sound weights"
        raise CheckpointError(f"the model gives NaN or infinity for finite windows: it has {reason}")


def _few(header: "Header") -> Shapes:
    """Return the shapes that bound all others, by arithmetic alone."""
    model = header.model
    expected: dict[str, tuple[int, ...]] = {
        "encoder.embed.weight": (model.width, model.patches.size),
        "encoder.positions": (model.positions, model.width),
        "encoder.electrodes": (len(header.electrodes) + 1, model.width),
        f"encoder.blocks.{model.depth - 1}.mlp.up.weight": (model.hidden, model.width),
    }
    if (decoder := decoder_config(header)) is not None:
        expected[f"decoder.blocks.{decoder.depth - 1}.mlp.up.weight"] = (decoder.hidden, decoder.width)
    return expected


def decoder_config(header: "Header") -> ModelConfig | None:
    """Return the dimensions of the ViTMAE decoder; None if the model has none."""
    objective = header.objective
    if objective is None or objective.style != "vitmae":
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an odd depth; the model itself warns of it
        return objective.decoder(header.model)


def _unlike(shapes: Shapes, expected: Shapes) -> str | None:
    for name, shape in expected.items():
        if name not in shapes:
            return f"{name} is missing"
        if shapes[name] != shape:
            return f"{name} has the shape {shapes[name]}; expected {shape}"
    return None
