"""Runtime and memory of the four kinds of attention, Large (arXiv:2501.10885, Appendix B, fig:split_attn_comparisons).

The paper's curves, read from its plots; four NVIDIA RTX 2080 Ti, with standard attention out of memory beyond 3,392
tokens. It draws one curve for alternating and bottleneck:

    runtime, ms
    tokens  standard  two_axis  alternating  bottleneck
        64      13.4      17.1         13.5        13.5
       320      53.3      60.0         48.9        48.9
       576      94.2     102.8         81.5        81.5
       832     148.7     148.0        113.4       113.4
      1088     208.0     186.8        143.6       143.6
      1344     276.9     234.3        180.8       180.8
      1600     360.2     275.2        212.0       212.0
      1856     448.0     320.4        247.3       247.3
      2112     523.4     362.0        278.6       278.6
      2368     653.8     411.3        316.9       316.9
      2624     795.7     451.2        347.8       347.8
      2880     902.4     493.3        378.9       378.9
      3136    1059.5     542.3        417.0       417.0
      3392    1162.9     585.3        448.8       448.8
      3648         -     641.5        493.6       493.6
      3904         -     677.0        518.4       518.4

    memory, MB
    tokens  standard  two_axis  alternating  bottleneck
        64     368.0     797.6        797.9       797.9
       320     818.5     948.3        778.1       778.1
       576    1032.7    1017.7        847.7       847.7
       832    1347.7    1087.3        917.2       917.2
      1088    1763.2    1156.9        987.3       987.3
      1344    2279.5    1226.4       1056.9      1056.9
      1600    2896.4    1296.0       1126.4      1126.4
      1856    3614.9    1366.5       1196.9      1196.9
      2112    4433.9    1436.8       1267.2      1267.2
      2368    5352.5    1506.0       1336.4      1336.4
      2624    6371.7    1575.2       1405.6      1405.6
      2880    7491.6    1644.4       1474.9      1474.9
      3136    8712.2    1713.7       1544.1      1544.1
      3392   10033.5    1783.0       1613.4      1613.4
      3648         -    1852.4       1682.9      1682.9
      3904         -    1922.0       1752.4      1752.4

Batch 8 and fp32 are ours. Standard attention here is torch's fused kernel, which holds no scores: do
not expect the paper's quadratic memory, and compare ratios on one machine, not milliseconds across machines.

    python recipes/figure_kinds.py --out results
    python recipes/figure_kinds.py --mini
"""

import sys

from figures import main
from timing import Model

MODELS = tuple(Model(kind, "large", kind) for kind in ("standard", "two_axis", "alternating", "bottleneck"))

if __name__ == "__main__":
    sys.exit(main("figure_kinds", __doc__, MODELS))
