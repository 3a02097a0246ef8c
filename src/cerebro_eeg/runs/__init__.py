"""Runs join model, data and training. A run is a folder with its settings, state, metrics, weights and report."""
