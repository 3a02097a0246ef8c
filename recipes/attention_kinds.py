"""All four kinds of attention, fine-tuned on TUAB (arXiv:2501.10885, Appendix B, tab:appendix_attention_comparison).

    representation  attention    balanced accuracy %  AUPR    AUROC
    spectrogram     bottleneck   77.49                0.8548  0.8545
    spectrogram     alternating  78.49                0.8684  0.8674
    spectrogram     two-axis     78.83                0.8702  0.8671
    spectrogram     standard     78.89                0.8719  0.8690
    waveform        bottleneck   78.20                0.8640  0.8594
    waveform        standard     79.35                0.8755  0.8700
    waveform        two-axis     80.57                0.8885  0.8820
    waveform        alternating  80.65                0.8901  0.8825

Pre-training (SimMIM) on TUSL, TUSZ and TUEP without the subjects of TUAB's test set; Large; spectrograms in time bins.
The paper's bottleneck, taken literally, gives every patch of a channel the same output (docs/paper.md).

    python recipes/attention_kinds.py --tusl TUSL --tusz TUSZ --tuep TUEP --tuab TUAB --out results
    python recipes/attention_kinds.py --mini
"""

import sys

from common import main
from tables import AUPR_MACRO, AUPR_POSITIVE, AUROC, BALANCED_ACCURACY, Row, Table

TABLE = Table(
    name="attention_kinds",
    title="Four kinds of attention, TUAB",
    columns=("representation", "attention"),
    metrics=(BALANCED_ACCURACY, AUPR_MACRO, AUPR_POSITIVE, AUROC),
    rows=(
        Row(("spectrogram", "bottleneck"), ("77.49", "0.8548", "0.8545"), patches="time_bins", attention="bottleneck"),
        Row(("spectrogram", "alternating"), ("78.49", "0.8684", "0.8674"), patches="time_bins"),
        Row(("spectrogram", "two-axis"), ("78.83", "0.8702", "0.8671"), patches="time_bins", attention="two_axis"),
        Row(("spectrogram", "standard"), ("78.89", "0.8719", "0.8690"), patches="time_bins", attention="standard"),
        Row(("waveform", "bottleneck"), ("78.20", "0.8640", "0.8594"), attention="bottleneck"),
        Row(("waveform", "standard"), ("79.35", "0.8755", "0.8700"), attention="standard"),
        Row(("waveform", "two-axis"), ("80.57", "0.8885", "0.8820"), attention="two_axis"),
        Row(("waveform", "alternating"), ("80.65", "0.8901", "0.8825")),
    ),
    corpus="tuab",
    task="abnormal",
    pretrain=("tusl", "tusz", "tuep"),
    held_out="test",
)

if __name__ == "__main__":
    sys.exit(main(TABLE, __doc__))
