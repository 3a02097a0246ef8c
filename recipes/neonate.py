"""Seizures of newborns: Helsinki at three sizes (arXiv:2501.10885, Section 4.5, tab:neonate_comparison).

    size   parameters  AUPR           AUROC
    Small  3.58 M      0.576 ± 0.089  0.830 ± 0.037
    Base   39.95 M     0.676 ± 0.092  0.867 ± 0.039
    Large  85.15 M     0.690 ± 0.091  0.875 ± 0.039

Pre-training on TUEG without the subjects of TUAB. Five folds of newborns: fold k tests, the next validates; ± is the
deviation over folds, which is how we read deviations of this size. A second is seizure when all three experts say so,
a window of 5 s takes the label that most of its own seconds have (ours).

    python recipes/neonate.py --tueg TUEG --neonate NEONATE --out results
    python recipes/neonate.py --mini
"""

import sys

from common import main
from tables import AUPR_MACRO, AUPR_POSITIVE, AUROC, Row, Table

TABLE = Table(
    name="neonate",
    title="Seizures of newborns, Helsinki",
    columns=("size",),
    metrics=(AUPR_MACRO, AUPR_POSITIVE, AUROC),
    rows=(
        Row(("Small",), ("0.576 ± 0.089", "0.830 ± 0.037"), size="small"),
        Row(("Base",), ("0.676 ± 0.092", "0.867 ± 0.039"), size="base"),
        Row(("Large",), ("0.690 ± 0.091", "0.875 ± 0.039"), size="large"),
    ),
    corpus="neonate",
    task="seizure",
    pretrain=("tueg",),
    labels="majority",
    folds=5,
    spread="std_over_folds",
)

if __name__ == "__main__":
    sys.exit(main(TABLE, __doc__))
