"""Measures: what ``metrics`` is made of, on plain arrays: numbers of scikit-learn, draws, levels, seizures."""
