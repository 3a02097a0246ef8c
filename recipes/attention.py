"""Alternating or standard attention, fine-tuned on TUAB (arXiv:2501.10885, Section 4.4, tab:attention_comparison).

    representation  attention    balanced accuracy %  AUPR    AUROC
    spectrogram     alternating  78.49                0.8684  0.8674
    spectrogram     standard     78.89                0.8719  0.8690
    waveform        standard     79.35                0.8755  0.8700
    waveform        alternating  80.65                0.8901  0.8825

Pre-training (SimMIM) on TUSL, TUSZ and TUEP without the subjects of TUAB's test set; Large; spectrograms in time bins.

    python recipes/attention.py --tusl TUSL --tusz TUSZ --tuep TUEP --tuab TUAB --out results
    python recipes/attention.py --mini
"""

import sys

from common import main
from tables import AUPR_MACRO, AUPR_POSITIVE, AUROC, BALANCED_ACCURACY, Row, Table

TABLE = Table(
    name="attention",
    title="Alternating or standard attention, TUAB",
    columns=("representation", "attention"),
    metrics=(BALANCED_ACCURACY, AUPR_MACRO, AUPR_POSITIVE, AUROC),
    rows=(
        Row(("spectrogram", "alternating"), ("78.49", "0.8684", "0.8674"), patches="time_bins"),
        Row(("spectrogram", "standard"), ("78.89", "0.8719", "0.8690"), patches="time_bins", attention="standard"),
        Row(("waveform", "standard"), ("79.35", "0.8755", "0.8700"), attention="standard"),
        Row(("waveform", "alternating"), ("80.65", "0.8901", "0.8825")),
    ),
    corpus="tuab",
    task="abnormal",
    pretrain=("tusl", "tusz", "tuep"),
    held_out="test",
)

if __name__ == "__main__":
    sys.exit(main(TABLE, __doc__))
