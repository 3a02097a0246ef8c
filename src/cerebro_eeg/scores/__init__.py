"""Scores of predictions: numbers of scikit-learn with intervals over subjects, seizure events, and their tables."""
