"""Shapes of spectrogram patches, fine-tuned on TUAB (arXiv:2501.10885, Section 4.3, tab:patching_comparison).

    patches    pre-training  balanced accuracy %  AUPR    AUROC
    squares    none          76.49                0.8462  0.8483
    time bins  none          77.24                0.8489  0.8498
    squares    SimMIM        78.33                0.8659  0.8595
    time bins  SimMIM        78.89                0.8719  0.8690

Pre-training on TUSL, TUSZ and TUEP without the subjects of TUAB's test set; Large, standard attention (the last row is
a row of the table of attention). Squares are 8 x 8 and time bins 1 x 64 values: 40 tokens per channel each (ours).

    python recipes/patching.py --tusl TUSL --tusz TUSZ --tuep TUEP --tuab TUAB --out results
    python recipes/patching.py --mini
"""

import sys

from common import main
from tables import AUPR_MACRO, AUPR_POSITIVE, AUROC, BALANCED_ACCURACY, Row, Table

TABLE = Table(
    name="patching",
    title="Shapes of spectrogram patches, TUAB",
    columns=("patches", "pre-training"),
    metrics=(BALANCED_ACCURACY, AUPR_MACRO, AUPR_POSITIVE, AUROC),
    rows=(
        Row(("squares", "none"), ("76.49", "0.8462", "0.8483"), patches="squares", attention="standard", style=None),
        Row(
            ("time bins", "none"), ("77.24", "0.8489", "0.8498"), patches="time_bins", attention="standard", style=None
        ),
        Row(("squares", "SimMIM"), ("78.33", "0.8659", "0.8595"), patches="squares", attention="standard"),
        Row(("time bins", "SimMIM"), ("78.89", "0.8719", "0.8690"), patches="time_bins", attention="standard"),
    ),
    corpus="tuab",
    task="abnormal",
    pretrain=("tusl", "tusz", "tuep"),
    held_out="test",
)

if __name__ == "__main__":
    sys.exit(main(TABLE, __doc__))
