"""How well each method of ``repair`` fills in hidden channels, on people that the weights never saw.

``python tools/measure_repair.py PACK [MODEL]`` takes the first recording of each of up to four validation subjects per
data set of the open-EEG pack (``pretrain.csv``), in the order of the table, and prints the table of ``docs/repair.md``.
Each value is the median over the hidden channels of all these recordings; an error is a share of the variance.
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path

import torch

from cerebro_eeg.data.datasets.openeeg import read_npz
from cerebro_eeg.data.preprocess import preprocess
from cerebro_eeg.data.reading.recording import ChannelPolicy
from cerebro_eeg.runs.repair import _stretches, hidden_errors, make_filler
from cerebro_eeg.runs.repair_result import median_errors

SUBJECTS = 4
METHODS = ("model", "splines", "both", "ridge")


def main(pack: Path, model: str = "small-open") -> None:
    """Print a row per data set."""
    torch.set_num_threads(1)
    filler = make_filler(model)
    with (pack / "pretrain.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == "val"]
    chosen: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        if len(chosen[row["dataset"]]) < SUBJECTS:
            chosen[row["dataset"]].setdefault(row["subject"], row["file"])
    print("| data set | channels | recordings | model | splines | both | ridge, for comparison | auto takes |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for dataset, files in chosen.items():
        hidden, taken, channels = [], [], 0
        for file in files.values():
            recording = read_npz(pack / file, ChannelPolicy(bipolar_ears=True))
            prepared = preprocess(recording, filler.config.signal)
            good = [channel.name for channel in prepared.channels]
            channels = len(good)
            found = hidden_errors(filler, good, _stretches(prepared), None)
            if found:
                own = median_errors(found)
                taken.append(min(METHODS[:3], key=lambda name: own[name]))
                hidden += found
        if not hidden:
            print(f"| {dataset} | {channels} | {len(files)} | too few electrodes | | | | |", flush=True)
            continue
        total = median_errors(hidden)
        values = " | ".join(f"{total[name]:.3f}" if name in total else "" for name in METHODS)
        votes = ", ".join(f"{name} {taken.count(name)}" for name in METHODS[:3] if name in taken)
        print(f"| {dataset} | {channels} | {len(taken)} | {values} | {votes} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
