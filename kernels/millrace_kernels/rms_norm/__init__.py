"""Root-mean-square normalisation. README.md has the maths.

Knows tensors; not models, sequences or schedules.
"""
