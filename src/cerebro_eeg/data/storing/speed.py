"""The speed of a preparation, for estimates before it begins."""

SPEED = 7e6
"""Stored values per second and core: the open-EEG pack, 326 million values, took 24 s with 2 workers."""
