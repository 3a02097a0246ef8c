"""Representation and pre-training style, on TUAB (arXiv:2501.10885, Section 4.2, tab:representation_comparison).

    representation  pre-training  balanced accuracy %  AUPR    AUROC
    spectrogram     none          76.49                0.8462  0.8483
    spectrogram     ViTMAE        77.71                0.8586  0.8559
    spectrogram     SimMIM        78.33                0.8659  0.8595
    waveform        none          76.39                0.8430  0.8426
    waveform        SimMIM        79.35                0.8755  0.8700
    waveform        ViTMAE        79.42                0.8741  0.8715

Pre-training on TUSL, TUSZ and TUEP without the subjects of TUAB's test set; Large; standard attention and square
patches, because the same rows return in the tables of attention and of patching.

    python recipes/representation.py --tusl TUSL --tusz TUSZ --tuep TUEP --tuab TUAB --out results
    python recipes/representation.py --mini
"""

import sys

from common import main
from tables import AUPR_MACRO, AUPR_POSITIVE, AUROC, BALANCED_ACCURACY, Row, Table

TABLE = Table(
    name="representation",
    title="Representation and pre-training style, TUAB",
    columns=("representation", "pre-training"),
    metrics=(BALANCED_ACCURACY, AUPR_MACRO, AUPR_POSITIVE, AUROC),
    rows=(
        Row(
            ("spectrogram", "none"), ("76.49", "0.8462", "0.8483"), patches="squares", attention="standard", style=None
        ),
        Row(
            ("spectrogram", "ViTMAE"),
            ("77.71", "0.8586", "0.8559"),
            patches="squares",
            attention="standard",
            style="vitmae",
        ),
        Row(("spectrogram", "SimMIM"), ("78.33", "0.8659", "0.8595"), patches="squares", attention="standard"),
        Row(("waveform", "none"), ("76.39", "0.8430", "0.8426"), attention="standard", style=None),
        Row(("waveform", "SimMIM"), ("79.35", "0.8755", "0.8700"), attention="standard"),
        Row(("waveform", "ViTMAE"), ("79.42", "0.8741", "0.8715"), attention="standard", style="vitmae"),
    ),
    corpus="tuab",
    task="abnormal",
    pretrain=("tusl", "tusz", "tuep"),
    held_out="test",
)

if __name__ == "__main__":
    sys.exit(main(TABLE, __doc__))
