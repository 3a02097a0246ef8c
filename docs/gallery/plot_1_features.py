"""
Features of your recordings
===========================

A folder of EEG files becomes a table of features: one vector per window of five seconds, from weights that come with
the package. Nothing is downloaded. Here the files are simulated, so that the example runs anywhere.
"""

# %%
# Recordings
# ----------
# ``simulate`` writes EDF files of people with open and closed eyes. In your own work this is your folder.

import tempfile

import cerebro_eeg

folder = tempfile.mkdtemp()
recordings = cerebro_eeg.simulate(f"{folder}/eeg", subjects=6, minutes=0.5, tasks="eyes", montages="10-20")
print(recordings)

# %%
# A store
# -------
# ``prepare`` filters, resamples and checks every file once, and keeps the labels with the signals.

store = cerebro_eeg.prepare(
    "folder", recordings, out=f"{folder}/store", labels=f"{folder}/eeg/labels/eyes.csv", workers=0
)
store.to_frame().iloc[:3, :6]

# %%
# Features
# --------
# ``embed`` gives every window its feature vector, with subject, split and label beside it.

table = cerebro_eeg.embed(store, "small-open", task="eyes")
table.to_frame().iloc[:3, :7]

# %%
# A picture
# ---------
# Two principal components of the features, coloured by label. People differ more than their eyes do, so the mean of
# each person is taken away first. The classifiers of this package do that by themselves where it helps.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import PCA

centred = np.array(table.X)
for person in np.unique(table.groups):
    centred[table.groups == person] -= centred[table.groups == person].mean(0)
places = PCA(2).fit_transform(centred)
figure, axes = plt.subplots(figsize=(5, 4), layout="constrained")
for label in np.unique(table.y):
    axes.scatter(*places[table.y == label].T, s=14, label=label)
axes.set(xlabel="first component", ylabel="second component", title="Windows of six people")
axes.legend()
