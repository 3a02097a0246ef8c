"""Measurements: rivals that take turns in one run, beside ceilings measured first. ``python -m cerebro_eeg.bench``."""
