"""Writes a small BIDS tree by hand, after the specification (bids-specification.readthedocs.io, version 1.10):

- "Filesystem structure" and "Entities": sub-<label>[/ses-<label>]/eeg/sub-<label>[_ses-<label>]_task-<label>[_run-<n>]
- "Electroencephalography": *_eeg.edf, .vhdr (with .eeg and .vmrk), .set (with .fdt), .bdf; *_eeg.json with
  PowerLineFrequency, SamplingFrequency; *_channels.tsv with name, type, units, status
- "Task events": *_events.tsv with onset and duration in seconds, trial_type, value; "n/a" for what is missing
- "The inheritance principle": a sidecar higher up speaks of all files that have its entities
"""

import json
from pathlib import Path

import numpy as np

from eeg_files import brainvision
from folder_files import edf, write

CHANNELS = ("Fp1", "Cz", "O2", "Belt 1")


def tsv(path: Path, *rows: str) -> Path:
    """A table; columns are given with blanks and written with tabs, and ~ stands for a blank."""
    return write(path, *("\t".join(field.replace("~", " ") for field in row.split()) for row in rows))


def tree(top: Path) -> Path:
    """Three subjects, one with sessions and two runs; rest and oddball; EDF and BrainVision."""
    write(top / "dataset_description.json", json.dumps({"Name": "x", "BIDSVersion": "1.10.0"}))
    tsv(
        top / "participants.tsv",
        "participant_id age group",
        "sub-01 30 patient",
        "sub-02 40 control",
        "sub-03 n/a n/a",
    )
    write(top / "task-rest_eeg.json", json.dumps({"PowerLineFrequency": 60, "SamplingFrequency": 128}))
    write(top / "task-odd_eeg.json", json.dumps({"PowerLineFrequency": "n/a", "SamplingFrequency": 128}))
    one = top / "sub-01" / "ses-a" / "eeg"
    edf(one / "sub-01_ses-a_task-odd_run-1_eeg.edf", CHANNELS, seed=1, notes=[("+1", "", "own note")])
    edf(one / "sub-01_ses-a_task-odd_run-2_eeg.edf", CHANNELS, seed=2)
    for run in (1, 2):
        tsv(
            one / f"sub-01_ses-a_task-odd_run-{run}_events.tsv",
            "onset duration trial_type value",
            f"{run}.5 2 target 1",
            "6.0 1.5 standard 2",
            "0.5 0 key n/a",
            "9 n/a key n/a",
            "3 1 secret 3",
        )
    tsv(
        top / "sub-01" / "sub-01_channels.tsv",  # speaks of all recordings of the subject
        "name type units status",
        "Fp1 EEG uV good",
        "Cz EEG uV bad",
        "O2 EEG uV n/a",
        "Belt~1 RESP n/a good",
    )
    edf(top / "sub-02" / "eeg" / "sub-02_task-rest_eeg.edf", CHANNELS[:3], seed=3)
    write(top / "sub-02" / "eeg" / "sub-02_task-rest_eeg.json", json.dumps({"PowerLineFrequency": 50}))
    three = top / "sub-03" / "eeg"
    three.mkdir(parents=True)
    rng = np.random.default_rng(4)
    brainvision(three / "sub-03_task-rest_eeg.vhdr", rng.integers(-300, 300, (2500, 2)), ["Cz", "Pz"], sfreq=250)
    edf(top / "derivatives" / "clean" / "sub-01" / "eeg" / "sub-01_task-rest_eeg.edf")
    edf(top / "sourcedata" / "sub-01" / "eeg" / "sub-01_task-rest_eeg.edf")
    return top
