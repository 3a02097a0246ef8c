"""Draw docs/figures/filled.png: masked patches of real EEG, filled in by a model that a CPU trained in minutes.

    python docs/figures/make_filled.py PACK WORK [OUTPUT]

PACK is a copy of the open-EEG pack, WORK an empty folder for the store and the run. The script prepares one data set,
trains the preset ``tiny`` on its training subjects and draws one window of a validation subject. A rule chooses that
window, not its looks: the middle of the first validation recording. The masks have a fixed seed. The script also prints
the masked error of the run beside three baselines, on windows of all validation subjects.
"""

import csv
import json
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

from cerebro_eeg import Batch, MaskedCerebro, match
from cerebro_eeg.data.storing.store import Store

DATASET = "eegmat"
TRAINING = "--preset tiny --steps 1500 --batch-size 32 --lr 2e-3 --stride 1 --device cpu --threads 1".split()
CHANNELS = ("Fp1", "F3", "Cz", "T7", "P3", "Pz", "O1", "O2")
SECONDS = 5.0
SEED = 0  # of the masks
SPACING = 60.0  # microvolts between two channels
ORANGE, BLUE, DARK, SHADE = "#D55E00", "#0072B2", "#333333", "#E6E6E6"


def train(pack: Path, work: Path) -> None:
    """Prepare the data set and train, unless WORK holds the result of an earlier call."""
    part = work / "pack"
    (part / "data").mkdir(parents=True, exist_ok=True)
    link = part / "data" / DATASET
    if not link.exists():
        link.symlink_to((pack / "data" / DATASET).resolve())
    for name in ("index.csv", "pretrain.csv"):
        with open(pack / name, newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["dataset"] == DATASET]
        with open(part / name, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
    command = [sys.executable, "-m", "cerebro_eeg"]
    subprocess.run([*command, "prepare", "openeeg", str(part), "--out", str(work / "store")], check=True)
    if not (work / "run" / "reconstruction.json").exists():
        subprocess.run([*command, "pretrain", str(work / "store"), "--out", str(work / "run"), *TRAINING], check=True)


def fill(work: Path) -> tuple[str, float, list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Return the recording's id, the start in seconds, channel names, signal, reconstruction and mask per sample."""
    store = Store(work / "store")
    recording = next(
        one for one in store.recordings if any(part.split == "val" for part in one.labels.get("pretrain", ()))
    )
    samples = round(SECONDS * recording.sfreq)
    start = (recording.samples - samples) // 2
    signal_CT = torch.from_numpy(store.read(recording, start, start + samples).T.astype(np.float32))
    model = MaskedCerebro.from_pretrained(work / "run").eval()
    batch = Batch.ragged([signal_CT], [torch.tensor(match(list(recording.channels)).ids)])
    noise_RN = torch.rand(len(signal_CT), model.config.patches.count(samples), generator=torch.manual_seed(SEED))
    with torch.no_grad():
        found = model(batch, noise_RN)
    mean_C, std_C = signal_CT.mean(1, keepdim=True), signal_CT.std(1, correction=0, keepdim=True)
    length = model.config.patches.length
    filled_CT = found.predicted_RNL.flatten(1) * std_C  # back from z-scores to microvolts
    masked_CT = found.masked_RN.repeat_interleave(length, 1)
    rows = [recording.channels.index(name) for name in CHANNELS]
    parts = (signal_CT - mean_C, filled_CT, masked_CT)
    return recording.id, start / recording.sfreq, list(CHANNELS), *(part[rows].numpy() for part in parts)


def draw(path: Path, names: list[str], signal_CT: np.ndarray, filled_CT: np.ndarray, masked_CT: np.ndarray) -> None:
    style = {"font.family": "DejaVu Sans", "font.size": 10.0}
    with matplotlib.rc_context(style):
        figure = Figure((10.6, 5.2), dpi=110, facecolor="white", layout="constrained")
        axes = figure.subplots()
        rate = signal_CT.shape[1] / SECONDS
        time = np.arange(signal_CT.shape[1]) / rate
        limit = 0.75 * SPACING
        for row in range(len(names)):
            middle, hidden = -SPACING * row, masked_CT[row]
            edges = np.flatnonzero(np.diff(np.concatenate([[0], hidden, [0]]).astype(int))).reshape(-1, 2) / rate
            spans = [(first, last - first) for first, last in edges.tolist()]
            axes.broken_barh(spans, (middle - SPACING / 2, SPACING), color=SHADE, linewidth=0, zorder=1)
            axes.axhline(middle - SPACING / 2, color="white", linewidth=2, zorder=2)
            original = middle + np.clip(signal_CT[row], -limit, limit)
            axes.plot(time, np.where(hidden, np.nan, original), color=DARK, linewidth=1.0, zorder=3)
            axes.plot(time, np.where(hidden, original, np.nan), color=BLUE, linewidth=1.0, zorder=3)
            model = np.where(hidden, middle + np.clip(filled_CT[row], -limit, limit), np.nan)
            axes.plot(time, model, color=ORANGE, linewidth=1.8, zorder=4)
        axes.set_yticks([-SPACING * row for row in range(len(names))], names)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, SECONDS)
        axes.set_ylim(-SPACING * (len(names) - 0.4), 0.6 * SPACING)
        axes.set_xlabel("seconds")
        axes.spines[["top", "right", "left"]].set_visible(False)
        bar = SECONDS + 0.05
        axes.plot([bar, bar], [-25, 25], color=DARK, linewidth=2, clip_on=False)
        axes.text(bar + 0.04, 0, "50 µV", va="center", fontsize=9.5, color=DARK)
        axes.plot([], [], color=DARK, linewidth=1.2, label="EEG that the model sees")
        axes.plot([], [], color=BLUE, linewidth=1.2, label="EEG that was hidden (grey patches)")
        axes.plot([], [], color=ORANGE, linewidth=2, label="what the model fills in")
        axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
        figure.savefig(path, format="png", metadata={"Software": None}, facecolor="white")


def main() -> None:
    pack, work = Path(sys.argv[1]), Path(sys.argv[2])
    train(pack, work)
    id, start, names, *signals = fill(work)
    draw(Path(sys.argv[3]) if len(sys.argv) > 3 else Path(__file__).with_name("filled.png"), names, *signals)
    signal_CT, filled_CT, masked_CT = signals
    error = ((filled_CT - signal_CT)[masked_CT] ** 2).mean() / (signal_CT[masked_CT] ** 2).mean()
    print(f"{id}, from {start:g} s; error of the masked patches that are shown: {error:.2f} of their variance")
    total = json.loads((work / "run" / "reconstruction.json").read_text(encoding="utf-8"))["found"]["total"]
    print("validation subjects, share of the variance:", {name: total[name] for name in total})


if __name__ == "__main__":
    main()
