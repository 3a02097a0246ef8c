"""Normal or abnormal: TUAB at three sizes (arXiv:2501.10885, Section 4.5, tab:tuab_comparison).

    size   parameters  balanced accuracy %  AUPR             AUROC
    Small  3.58 M      79.40 ± 0.19         0.8763 ± 0.0031  0.8749 ± 0.0033
    Base   39.95 M     81.29 ± 0.15         0.8994 ± 0.0002  0.8867 ± 0.0006
    Large  85.15 M     81.67 ± 0.23         0.9049 ± 0.0026  0.8916 ± 0.0038

Pre-training on TUEG without the subjects of TUAB. TUAB's own eval tests, a fifth of the other subjects validates.

    python recipes/tuab.py --tueg TUEG --tuab TUAB --out results
    python recipes/tuab.py --mini
"""

import sys

from common import main
from tables import AUPR_MACRO, AUPR_POSITIVE, AUROC, BALANCED_ACCURACY, Row, Table

TABLE = Table(
    name="tuab",
    title="Normal or abnormal, TUAB",
    columns=("size",),
    metrics=(BALANCED_ACCURACY, AUPR_MACRO, AUPR_POSITIVE, AUROC),
    rows=(
        Row(("Small",), ("79.40 ± 0.19", "0.8763 ± 0.0031", "0.8749 ± 0.0033"), size="small"),
        Row(("Base",), ("81.29 ± 0.15", "0.8994 ± 0.0002", "0.8867 ± 0.0006"), size="base"),
        Row(("Large",), ("81.67 ± 0.23", "0.9049 ± 0.0026", "0.8916 ± 0.0038"), size="large"),
    ),
    corpus="tuab",
    task="abnormal",
    pretrain=("tueg",),
    held_out="test",
)

if __name__ == "__main__":
    sys.exit(main(TABLE, __doc__))
