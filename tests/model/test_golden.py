"""Results that must not change with a refactoring, for each kind of attention, input and objective, in float64.

Formulas give weights and windows, so that the results depend on no random generator. After an intended change,
``python tests/model/test_golden.py`` writes the file again, and the commit explains the change.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cerebro_eeg.config import ObjectiveConfig, PatchConfig
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.encoder import Encoder
from cerebro_eeg.model.masked import MaskedCerebro
from tiny_models import KINDS, small, to_batch

FILE = Path(__file__).parent / "golden.json"
COUNTS = [3, 1, 2]


def filled(module):
    """Fill every parameter by a formula, a cosine with its own frequency."""
    module.double()
    with torch.no_grad():
        for i, (name, p) in enumerate(module.named_parameters()):
            values = 0.25 * np.cos(np.arange(p.numel()) * (0.7 + 0.01 * i) + i)
            p.copy_(torch.tensor(values).reshape(p.shape) + ("norm" in name and name.endswith("weight")))
            if name.endswith("electrodes"):
                p[0] = 0
    return module.eval()


def windows(samples):
    time = np.arange(samples) / 256
    signals, ids, row = [], [], 0
    for count in COUNTS:
        rows = range(row, row + count)
        signals.append(
            np.stack([20 * np.sin(2 * np.pi * (3 + r) * time + r) + 5 * np.cos(90 * time * r) for r in rows])
        )
        ids.append([(r + 1, 5 if r % 3 == 2 else 0) for r in rows])
        row += count
    return to_batch(signals, ids, scale=[10.0, 20.0, 30.0])


def noise(patches):
    return torch.tensor(np.modf(np.arange(sum(COUNTS) * patches) * 0.6180339887498949)[0]).reshape(-1, patches)


def encoded(samples=40, **config):
    return filled(Encoder(small(**config)))(windows(samples)).per_channel()


def reconstructed(style, kind):
    model = filled(MaskedCerebro(small(attention=kind), ObjectiveConfig(style=style, decoder_width=6)))
    found = model(windows(40), noise(5))
    return torch.stack([found.masked_loss, found.visible_loss, found.loss])


SPECTRA = [(kind, phase) for kind in ("time_bins", "squares") for phase in ("none", "interleaved", "separated")]
CASES = {
    **{f"attention {kind}": (lambda kind=kind: encoded(attention=kind)) for kind in KINDS},
    **{f"norm {norm}": (lambda norm=norm: encoded(norm=norm)) for norm in ("pre", "post")},
    **{
        f"normalization {n}": (lambda n=n: encoded(normalization=n, fixed_scale=50.0))
        for n in ("zscore", "recording", "minmax", "scale", "none")
    },
    "amplitude": lambda: encoded(amplitude=True),
    "longer window": lambda: encoded(samples=88),
    **{
        f"spectrogram {kind} {phase}": (
            lambda kind=kind, phase=phase: encoded(320, window=320, patches=PatchConfig(kind=kind, phase=phase))
        )
        for kind, phase in SPECTRA
    },
    **{
        f"{style} {kind}": (lambda style=style, kind=kind: reconstructed(style, kind))
        for style in ("simmim", "vitmae")
        for kind in KINDS
    },
    "classifier": lambda: filled(Cerebro(4, config=small()))(windows(40)),
}


@pytest.mark.parametrize("case", CASES)
def test_golden(case):
    expected = json.loads(FILE.read_text())[case]
    found = CASES[case]().detach().flatten()
    assert found.std() > 1e-3  # a case that gives a constant guards nothing
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-7, atol=1e-8)


def test_no_golden_number_is_left_without_a_case():
    assert list(json.loads(FILE.read_text())) == list(CASES)


if __name__ == "__main__":
    values = {case: [float(f"{v:.10g}") for v in make().detach().flatten().tolist()] for case, make in CASES.items()}
    FILE.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in values.items()) + "\n}\n")
