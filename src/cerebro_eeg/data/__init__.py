"""From EEG files to a store of windows. NumPy, SciPy and MNE; knows no network and no torch but the Batch."""
