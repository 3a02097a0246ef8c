"""Draw the pictures of docs/mne.md, from simulated EEG and the weights that are shipped.

    python docs/figures/make_mne.py WORK [FOLDER]

WORK is an empty folder for the recordings, the store and the run; the pictures go to FOLDER, by default the one of this
script. Six people are simulated with eyes open and closed, whose alpha waves over the back of the head block with open
eyes. A frozen probe learns the two states from four of them, and ``explain`` says what its answers depend on.
"""

import subprocess
import sys
from pathlib import Path

import cerebro_eeg


def train(work: Path) -> None:
    """Simulate, prepare and train, unless an earlier call did."""
    command = [sys.executable, "-m", "cerebro_eeg"]
    recordings, store = str(work / "recordings"), str(work / "store")
    if not (work / "eyes").exists():
        subprocess.run(
            [*command, *"simulate --subjects 6 --minutes 2 --tasks eyes --montages 10-20".split(), recordings],
            check=True,
        )
        labels = str(work / "recordings" / "labels" / "eyes.csv")
        subprocess.run([*command, "prepare", "folder", recordings, "--labels", labels, "--out", store], check=True)
        start = ["--task", "eyes", "--from", "small-open", "--freeze", "--out", str(work / "eyes")]
        subprocess.run([*command, "finetune", store, *start], check=True)


def main() -> None:
    work = Path(sys.argv[1])
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent
    train(work)
    files = sorted((work / "recordings").glob("sub-*/*.edf"))
    found = cerebro_eeg.explain(files, work / "eyes", groups=[file.parent.name for file in files])
    found.plot(folder / "explanation.png")
    print("what the answers depend on:", found.text())
    cerebro_eeg.electrode_map("small-open", like=["Fz", "C3", "O1"]).plot(folder / "electrodes.png")
    attention = cerebro_eeg.channel_attention(files[0], "small-open")
    print("attention that O1 gets in layer 5, times an even share:", round(attention.received(5)["O1"], 2))


if __name__ == "__main__":
    main()
