"""What windows with different numbers of channels cost in a training step, by the way they are batched.

    python benchmarks/mixed_montages.py [--preset small --windows 1024] [--device cuda]

One batch of windows with 18 to 36 channels, as TUEG has them, in five forms: padded to 64 as the paper does, padded to
the widest window, packed rows (ours), one dense group for each number of channels, and, as the yardstick, a uniform
batch with the same number of tokens. Forward and backward of the masked objective, compiled, bf16 on CUDA; the forms
take turns in every round, and the median of each is compared per real token.
"""

import argparse
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable

import torch

from cerebro_eeg.batch import Batch
from cerebro_eeg.config import preset
from cerebro_eeg.model.masked import MaskedCerebro


def make_forms(windows: int, samples: int, device: str) -> tuple[dict[str, list[Batch]], int]:
    """The same mixture of windows in every form, and its number of rows."""
    rng = random.Random(0)
    counts = [rng.randint(18, 36) for _ in range(windows)]
    signals = [torch.randn(c, samples, device=device) * 20 for c in counts]
    ids = [torch.tensor([(i + 1, 0) for i in range(c)], device=device) for c in counts]

    def padded(width: int) -> Batch:
        signal = torch.zeros(windows, width, samples, device=device)
        channels = torch.zeros(windows, width, 2, dtype=torch.int64, device=device)
        for b, (x, i) in enumerate(zip(signals, ids, strict=True)):
            signal[b, : len(x)], channels[b, : len(x)] = x, i
        return Batch.dense(signal, channels)

    groups = defaultdict(list)
    for x, i in zip(signals, ids, strict=True):
        groups[len(x)].append((x, i))
    grouped = [Batch.dense(torch.stack([x for x, _ in g]), g[0][1]) for _, g in sorted(groups.items())]
    rows = sum(counts)
    mean = round(rows / windows)
    uniform = Batch.dense(
        torch.randn(windows, mean, samples, device=device) * 20, ids[counts.index(max(counts))][:mean]
    )
    forms = {
        "padded to 64": [padded(64)],
        "padded to widest": [padded(max(counts))],
        "packed rows": [Batch.ragged(signals, ids)],
        "equal groups": grouped,
        f"uniform ({mean} channels)": [uniform],
    }
    return forms, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--windows", type=int, default=1024)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--without", nargs="*", default=[], help="forms to leave out")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64  # five forms of one module are no sign of a mistake
    forms, rows = make_forms(args.windows, 1280, args.device)
    model = MaskedCerebro(preset(args.preset).model).to(args.device)
    name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    print(
        f"{name}, torch {torch.__version__}, {args.preset}, {args.windows} windows of 18-36 channels, {rows} rows x 20"
    )
    steps: dict[str, Callable[[], None]] = {}
    for form, batches in forms.items():
        if form in args.without:
            continue
        # Mixtures change from step to step, so their shapes are dynamic; a uniform batch may have static ones.
        mixed = form in ("packed rows", "equal groups")
        compiled = model if args.eager else torch.compile(model, dynamic=mixed)

        def step(compiled: torch.nn.Module = compiled, batches: list[Batch] = batches) -> None:
            model.zero_grad(set_to_none=True)
            with torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda"):
                found = [compiled(batch) for batch in batches]
                loss = sum(f.masked_sum for f in found) / sum(f.masked_count for f in found)
            loss.backward()

        start = time.perf_counter()
        step()
        step()
        _wait(args.device)
        print(f"  {form}: ready after {time.perf_counter() - start:.1f} s", flush=True)
        steps[form] = step
    times: dict[str, list[float]] = {form: [] for form in steps}
    for _ in range(args.rounds):
        for form, step in steps.items():
            _wait(args.device)
            start = time.perf_counter()
            step()
            _wait(args.device)
            times[form].append(time.perf_counter() - start)
    uniform = next(f for f in times if f.startswith("uniform"))
    yardstick = statistics.median(times[uniform]) / forms[uniform][0].signal_RT.shape[0]
    print(f"{'form':24}{'ms':>9}{'spread':>9}{'per real token / uniform':>26}{'padded to 64 / form':>22}")
    for form, seconds in times.items():
        median = statistics.median(seconds)
        real = rows if form != uniform else forms[uniform][0].signal_RT.shape[0]
        ratio = statistics.median(times["padded to 64"]) / median
        spread = (max(seconds) - min(seconds)) / median
        print(f"{form:24}{median * 1e3:>9.1f}{spread:>9.1%}{median / real / yardstick:>26.2f}{ratio:>22.2f}")


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
