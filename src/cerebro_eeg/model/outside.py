"""Two calls that compiled code makes outside of itself, with the reason that torch then gives.

Only compiled code imports this file. ``torch.compiler.disable`` imports the compiler, which takes as long as the import
of torch, and ``embed`` or ``predict`` need none.
"""

from typing import Any, NoReturn

import torch
from torch import Tensor

from cerebro_eeg.errors import InputError
from cerebro_eeg.model.montages import Known, Montages


@torch.compiler.disable(  # type: ignore[untyped-decorator]
    reason="the windows do not have the model's channels or length; call the model uncompiled to see"
)
def refuse(message: str) -> NoReturn:
    """Raise outside of compiled code. A raise inside of it would make torch run the model uncompiled from then on."""
    raise InputError(message)


@torch.compiler.disable(  # type: ignore[untyped-decorator]
    reason="new channel names are matched outside of compiled code; call the model once with them before"
)
def find(montages: Montages, *given: Any) -> list[tuple[Known, Tensor | None]]:
    """Match the channels that a call has named."""
    return montages.find(*given)
