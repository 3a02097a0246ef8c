"""From EEG files to a store and to batches of windows. Uses NumPy, SciPy and MNE, and of torch only for ``Batch``."""
