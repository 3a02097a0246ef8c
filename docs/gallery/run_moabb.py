"""
A MOABB pipeline
================

MOABB scores pipelines of scikit-learn on many data sets with one protocol. Its ``FakeDataset`` holds noise, so the
score is about one half; put a real data set in its place. This page is run where MOABB is installed.
"""

# %%
# A paradigm hands out microvolts without names, at the rate of the data set: ask for 256 Hz, and name the channels.

import os
import tempfile
import warnings

os.environ["MNE_DATA"] = os.environ["MOABB_RESULTS"] = tempfile.mkdtemp()  # where MOABB keeps data and scores

import mne
from moabb.datasets.fake import FakeDataset
from moabb.evaluations import CrossSubjectEvaluation
from moabb.paradigms import LeftRightImagery
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cerebro_eeg import CerebroFeatures

mne.set_log_level("error")
warnings.simplefilter("ignore")  # MOABB and its packages warn of their own future
names = ["C3", "Cz", "C4"]
dataset = FakeDataset(["left_hand", "right_hand"], n_subjects=3, n_sessions=1, n_runs=1, channels=tuple(names))

# %%
# The pipeline: features of the frozen encoder, and a linear classifier.

features = CerebroFeatures("small-open", ch_names=names, sfreq=256.0)
probe = make_pipeline(features, StandardScaler(), LogisticRegression(max_iter=1000))
evaluation = CrossSubjectEvaluation(paradigm=LeftRightImagery(resample=256), datasets=[dataset], overwrite=True)
evaluation.process({"cerebro, frozen": probe})[["subject", "score"]]
