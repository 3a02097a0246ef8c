"""The engine: one loop for one process or many, with exact resume. It knows modules and batches, nothing of EEG."""
