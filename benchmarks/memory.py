"""Is the memory that ``cerebro-eeg info`` counts the memory that a GPU uses?

    python benchmarks/memory.py [--channels 19 --windows 64]

Peak of allocated memory above weights and input, in fp32, for a forward pass without gradients and for what a forward
pass keeps for the backward, over the number counted from the config.
"""

import argparse

import torch

from cerebro_eeg import costs
from cerebro_eeg.batch import Batch
from cerebro_eeg.config import ModelConfig, preset
from cerebro_eeg.model.encoder import Encoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, default=19)
    parser.add_argument("--windows", type=int, default=64)
    args = parser.parse_args()
    shape = f"{args.windows} windows x {args.channels} channels x 5 s"
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {shape}")
    print(f"{'preset':8}{'attention':13}{'forward MiB':>12}{'/ counted':>11}{'kept MiB':>12}{'/ counted':>11}")
    for name in ("small", "base", "large"):
        for attention in ("alternating", "standard", "two_axis", "bottleneck"):
            model = preset(name).model
            config = ModelConfig(model.depth, model.width, model.heads, attention=attention)
            encoder = Encoder(config).cuda()
            ids = torch.tensor([(i + 1, 0) for i in range(args.channels)])
            batch = Batch.dense(torch.randn(args.windows, args.channels, 1280, device="cuda"), ids)
            counted = costs.cost(config, args.channels, 1280)
            with torch.no_grad():
                encoder(batch)
                forward = _peak(lambda encoder=encoder, batch=batch: encoder(batch))
            before = torch.cuda.memory_allocated()
            kept = encoder(batch)
            backward = torch.cuda.memory_allocated() - before
            del kept
            print(f"{name:8}{attention:13}", end="")
            for found, per_window in ((forward, counted.forward_bytes), (backward, counted.backward_bytes)):
                print(f"{found / 2**20:>12.1f}{found / per_window / args.windows:>11.2f}", end="")
            print()


def _peak(run) -> int:  # type: ignore[no-untyped-def]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


if __name__ == "__main__":
    main()
