"""EEG with known truth: sources in a head of spheres, projected to any montage, and written as EDF+ with labels."""
