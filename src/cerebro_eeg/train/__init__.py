"""The training loop for one process or many, with exact resume. It knows modules and batches, and nothing of EEG."""
