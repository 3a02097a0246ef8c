"""
Fine-tune on a BIDS data set
============================

BIDS is how most open EEG is shared. ``prepare`` reads it, and ``finetune`` trains, compares and reports. The data set
of this example is written by ``mne-bids`` from simulated recordings of six people with open and closed eyes.
"""

# %%
# A BIDS data set
# ---------------
# Each recording is cut in two: its intervals with open and with closed eyes become events.

import shutil
import tempfile
from pathlib import Path

import mne
import mne_bids
import pandas

import cerebro_eeg

mne.set_log_level("ERROR")
folder = Path(tempfile.mkdtemp())
cerebro_eeg.simulate(folder / "eeg", subjects=6, minutes=0.5, tasks="eyes", montages="10-20")
labels = pandas.read_csv(folder / "eeg" / "labels" / "eyes.csv")
print(labels.head(3))

# %%
for name, intervals in labels.groupby("file"):
    raw = mne.io.read_raw_edf(folder / "eeg" / name)
    raw.set_annotations(mne.Annotations(intervals.start, intervals.stop - intervals.start, intervals.label))
    raw.info["line_freq"] = 50
    path = mne_bids.BIDSPath(subject=Path(name).parent.name[4:], task="rest", datatype="eeg", root=folder / "bids")
    mne_bids.write_raw_bids(raw, path, overwrite=True, verbose=False)
print(sorted(path.name for path in (folder / "bids").iterdir()))

# %%
# First look, then prepare
# ------------------------
# ``info`` says of every recording what ``prepare`` would make of it, and which option would help.

cerebro_eeg.info(folder / "bids")

# %%
store = cerebro_eeg.prepare(
    "bids", folder / "bids", out=folder / "store", events=["eyes_open", "eyes_closed"], split="subject", workers=0
)
store

# %%
# Train and read the verdict
# --------------------------
# The head is fitted on the frozen encoder, and cross-validation over people chooses what it reads. Simple rivals
# answer the same windows.

run = cerebro_eeg.finetune(store, task="events", from_="small-open", freeze=True, out=folder / "run", device="cpu")
print(run.text())

# %%
# The page of the run begins with who wins. With so few people it says that the data are too few.

print((folder / "run" / "report.html").exists())
shutil.rmtree(folder)
