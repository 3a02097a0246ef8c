"""Joint angles while walking: MoBI at three sizes (arXiv:2501.10885, Appendix D, tab:mobi_performance).

    size   parameters  R2               RMSE
    Small  3.58 M      0.1036 ± 0.0007  0.1375 ± 0.0005
    Base   39.95 M     0.2776 ± 0.0002  0.1239 ± 0.0006
    Large  85.15 M     0.3118 ± 0.0032  0.1209 ± 0.0004

Pre-training on TUEG without the subjects of TUAB. Windows of 2 s every 50 ms at 100 Hz, fed as they are to weights
that learned at 256 Hz; 12 angles at a window's last sample, scaled by the training trial; trials 1, 2 and 3 train,
validate and test (all ours).

    python recipes/mobi.py --tueg TUEG --mobi MOBI --out results
    python recipes/mobi.py --mini
"""

import sys

from common import main
from tables import R2, RMSE, Row, Table

TABLE = Table(
    name="mobi",
    title="Joint angles, MoBI",
    columns=("size",),
    metrics=(R2, RMSE),
    rows=(
        Row(("Small",), ("0.1036 ± 0.0007", "0.1375 ± 0.0005"), size="small"),
        Row(("Base",), ("0.2776 ± 0.0002", "0.1239 ± 0.0006"), size="base"),
        Row(("Large",), ("0.3118 ± 0.0032", "0.1209 ± 0.0004"), size="large"),
    ),
    corpus="mobi",
    task="joints",
    pretrain=("tueg",),
    labels="last",
    rate="as_is",
)

if __name__ == "__main__":
    sys.exit(main(TABLE, __doc__))
