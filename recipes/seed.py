"""Emotions while watching films: SEED at three sizes (arXiv:2501.10885, Section 4.5, tab:seed_comparison).

    size   parameters  accuracy %    F1
    Small  3.58 M      54.57 ± 0.56  0.5475 ± 0.0058
    Base   39.95 M     67.18 ± 0.24  0.6732 ± 0.0023
    Large  85.15 M     68.21 ± 0.63  0.6845 ± 0.0061

Pre-training on TUEG without the subjects of TUAB. Windows of 1 s at 200 Hz are fed as they are to weights that
learned at 256 Hz. Trials 1-9, 10-12 and 13-15 of each session train, validate and test; F1 is weighted (ours).

    python recipes/seed.py --tueg TUEG --seed SEED --out results
    python recipes/seed.py --mini
"""

import sys

from common import main
from tables import ACCURACY, F1, Row, Table

TABLE = Table(
    name="seed",
    title="Emotions, SEED",
    columns=("size",),
    metrics=(ACCURACY, F1),
    rows=(
        Row(("Small",), ("54.57 ± 0.56", "0.5475 ± 0.0058"), size="small"),
        Row(("Base",), ("67.18 ± 0.24", "0.6732 ± 0.0023"), size="base"),
        Row(("Large",), ("68.21 ± 0.63", "0.6845 ± 0.0061"), size="large"),
    ),
    corpus="seed",
    task="emotion",
    pretrain=("tueg",),
    rate="as_is",
)

if __name__ == "__main__":
    sys.exit(main(TABLE, __doc__))
