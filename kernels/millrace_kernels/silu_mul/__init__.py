"""The gated activations of MLPs. README.md has the maths.

Knows tensors; not models, sequences or schedules.
"""
