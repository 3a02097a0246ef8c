"""
A classifier in scikit-learn
============================

``CerebroClassifier`` is an estimator like any other: it goes into pipelines, grid searches and ``cross_val_score``.
Groups are people, so that nobody is in training and test at once. A simple rival stands beside it, as it always
should.
"""

# %%
# Windows as arrays
# -----------------
# A store gives the windows that the command line would use, in microvolts, with labels and people.

import tempfile

import cerebro_eeg

folder = tempfile.mkdtemp()
recordings = cerebro_eeg.simulate(f"{folder}/eeg", subjects=8, minutes=0.5, tasks="eyes", montages="10-20")
store = cerebro_eeg.prepare(
    "folder", recordings, out=f"{folder}/store", labels=f"{folder}/eeg/labels/eyes.csv", workers=0
)
X, y, groups, info = store.arrays("eyes")
print(X.shape, info.sfreq, info.channels[:4], sorted(set(y)))

# %%
# Scores over people
# ------------------
# The head is fitted on frozen features. ``GroupKFold`` keeps people apart.

from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from cerebro_eeg import CerebroFeatures

features = CerebroFeatures("small-open", ch_names=list(info.channels), sfreq=info.sfreq)
ours = make_pipeline(features, StandardScaler(), LogisticRegression(C=0.1))
scores = cross_val_score(ours, X, y, groups=groups, cv=GroupKFold(4), scoring="roc_auc")
print(f"features of small-open: AUROC {scores.mean():.2f}")

# %%
# The simple rival
# ----------------
# Log band power of every channel with the same classifier.

import numpy as np


def band_power(X):
    power = np.abs(np.fft.rfft(X - X.mean(-1, keepdims=True))) ** 2
    hertz = np.fft.rfftfreq(X.shape[-1], 1 / info.sfreq)
    bands = [(1, 4), (4, 8), (8, 13), (13, 20), (20, 30), (30, 45)]
    return np.concatenate([np.log(power[..., (low <= hertz) & (hertz < high)].mean(-1)) for low, high in bands], axis=1)


rival = make_pipeline(FunctionTransformer(band_power), StandardScaler(), LogisticRegression(C=0.1))
simple = cross_val_score(rival, X, y, groups=groups, cv=GroupKFold(4), scoring="roc_auc")
print(f"band power:             AUROC {simple.mean():.2f}")

# %%
# Simulated eyes are easy, so both may be perfect. :doc:`/evidence` has real EEG, where band power is hard to beat.
# ``CerebroClassifier`` chooses what its head reads, simple features among it; :doc:`/scikit-learn` has its options.
