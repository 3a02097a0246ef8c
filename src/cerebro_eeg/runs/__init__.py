"""Runs: what joins model, data and engine. A run is a folder: its settings, state, metrics, weights and report."""
