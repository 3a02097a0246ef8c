"""Kernels: where the GPU's time of a step goes, by torch's profiler.

A roofline says what a step could take if every product ran as it does alone. In a step the chip is warm and its clock
lower: what the library's products take there no kernel of ours can change.
"""

import re
from collections.abc import Iterable

import torch
from torch.profiler import ProfilerActivity, profile

from cerebro_eeg.bench.clock import Call

GROUPS = {
    "products with GELU": re.compile("cerebro_mlp"),
    "attention": re.compile("cerebro_attention|flash|fmha|sdpa|softmax", re.IGNORECASE),
    "norms": re.compile("cerebro_norm|layer_norm", re.IGNORECASE),
    "products": re.compile("nvjet|gemm|cutlass|cublas|splitk|cerebro_narrow", re.IGNORECASE),
}
"""By name; the first that fits."""
REST = "rest"


def profiled(call: Call, device: torch.device, steps: int = 2) -> dict[str, float] | None:
    """Milliseconds of a call by :data:`GROUPS`; None where there is no GPU."""
    if device.type != "cuda":
        return None
    call()
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as seen:
        for _ in range(steps):
            call()
        torch.cuda.synchronize(device)
    found = seen.key_averages()
    times = ((event.key, event.self_device_time_total) for event in found if event.device_type.name == "CUDA")
    return grouped((name, microseconds / steps / 1e3) for name, microseconds in times)


def grouped(times: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Sums of kernels by group, the largest first."""
    sums = dict.fromkeys((*GROUPS, REST), 0.0)
    for name, time in times:
        sums[next((group for group, fits in GROUPS.items() if fits.search(name)), REST)] += time
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def describe(rival: str, name: str, sums: dict[str, float]) -> str:
    """In words."""
    parts = ", ".join(f"{group} {time:.1f}" for group, time in sums.items())
    return f"kernels of a step of {rival}, {name}: {sum(sums.values()):.1f} ms ({parts})"
