"""Runtime and memory of standard and alternating attention, three sizes (arXiv:2501.10885, Section 3.4, fig:combined).

The paper's curves, read from its plots; four NVIDIA RTX 2080 Ti, forward pass:

    runtime, ms
    tokens  standard-small  standard-base  standard-large  alternating-small  alternating-base  alternating-large
        64            14.9           20.2            38.3               15.8              20.5               38.1
       320            15.7           32.2            57.3               16.2              30.3               55.1
       576            19.7           45.3            82.5               16.5              38.6               73.9
       832            27.9           61.8           108.8               17.1              47.9               92.7
      1088            38.4           84.6           141.2               19.6              57.3              108.3
      1344            48.4          108.6           178.5               19.7              68.7              128.5
      1600            66.0          137.9           222.6               22.4              79.8              147.5
      1856            82.2          166.8           269.1               22.7              86.6              167.4
      2112            96.0          194.2           310.1               25.2              96.5              183.5
      2368           124.8          239.8           376.3               27.6             107.2              203.8
      2624           161.0          296.3           452.0               29.3             117.3              222.8
      2880           184.5          335.7           506.7               30.6             126.5              238.6
      3136           221.6          395.9           585.5               31.6             139.4              258.5
      3392           239.9          431.8           644.0               33.8             149.7              280.4
      3648           278.5          495.9           731.5               35.4             160.6              301.5
      3904           299.0          529.2           782.6               37.7             167.0              315.7

    memory, MB
    tokens  standard-small  standard-base  standard-large  alternating-small  alternating-base  alternating-large
        64            33.7          193.7           528.6              374.5             193.7              528.6
       320           409.2          240.8           573.5              378.7             217.0              554.8
       576           503.1          343.2           679.5              389.9             241.5              589.6
       832           645.4          495.2           838.3              400.6             269.2              625.4
      1088           839.8          699.1          1044.8              411.9             295.6              659.1
      1344          1083.8          952.7          1304.5              422.8             322.0              694.7
      1600          1377.3         1255.3          1611.3              433.6             346.0              728.7
      1856          1722.8         1609.3          1972.6              446.2             373.7              765.1
      2112          2117.6         2014.1          2380.0              456.7             398.2              799.0
      2368          2562.7         2468.5          2840.8              468.2             425.9              834.4
      2624          3059.2         2977.3          3348.8              479.7             453.4              868.2
      2880          3604.7         3531.1          3910.3              490.9             480.3              903.6
      3136          4200.5         4136.0          4519.0              501.2             504.1              937.4
      3392          4846.9         4791.8          5181.3              512.6             531.0              972.8
      3648          5543.5         5497.0          5890.8              524.4             554.9             1006.8
      3904          6292.6         6253.8          6653.8              544.8             582.6             1042.4

Batch 8 and fp32 are ours. Standard attention here is torch's fused kernel, which holds no scores: do
not expect the paper's quadratic memory, and compare ratios on one machine, not milliseconds across machines.

    python recipes/figure_sizes.py --out results
    python recipes/figure_sizes.py --mini
"""

import sys

from figures import main
from timing import Model

MODELS = tuple(
    Model(f"{attention}-{size}", size, attention)
    for attention in ("standard", "alternating")
    for size in ("small", "base", "large")
)

if __name__ == "__main__":
    sys.exit(main("figure_sizes", __doc__, MODELS))
