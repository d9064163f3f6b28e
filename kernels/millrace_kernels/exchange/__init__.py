"""Combines the parts of workers that share a model. README.md has the maths.

Knows tensors; not models, sequences or schedules.
"""
