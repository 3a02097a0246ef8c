"""
Read a report
=============

``evaluate`` scores the test people once, puts simple rivals beside every score, and writes a page. This example makes
such a run and goes through its numbers.
"""

# %%
import tempfile

import cerebro_eeg

folder = tempfile.mkdtemp()
recordings = cerebro_eeg.simulate(f"{folder}/eeg", subjects=30, minutes=0.3, tasks="eyes", montages="10-20")
store = cerebro_eeg.prepare(
    "folder", recordings, out=f"{folder}/store", labels=f"{folder}/eeg/labels/eyes.csv", workers=0
)
run = cerebro_eeg.finetune(
    store, task="eyes", from_="small-open", freeze=True, readout="moments", out=f"{folder}/run", device="cpu"
)

# %%
# The score
# ---------
# Asking again prints the first score: a test split that is looked at often is no test split.

score = cerebro_eeg.evaluate(run, store, device="cpu")
score.to_frame().head(6)

# %%
# - **level**: windows, whole recordings, or people. A paper on people needs the last one.
# - **low, high**: the interval of 95 % over people. Windows of one person are no independent data.
# - **chance**: what a guess would get.
#
# Who wins
# --------
# Every rival answered the same windows. The difference has an interval over people: where it spans zero, nobody wins.

import pandas

pandas.DataFrame(score.rivals)[["name", "ours", "rival", "difference", "low", "high"]]

# %%
# The page
# --------
# ``report.html`` in the run begins with that sentence. It is one file without scripts, for colleagues and reviewers.

import re
from pathlib import Path

page = (Path(f"{folder}/run") / "report.html").read_text()
print(re.sub("<[^>]+>", " ", page[page.index("<h1") : page.index("<h1") + 1500])[:700])
