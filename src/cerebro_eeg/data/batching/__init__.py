"""From a store to batches: windows, labels, splits, order and reading."""
