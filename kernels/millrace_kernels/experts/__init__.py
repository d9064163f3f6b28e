"""Mixtures of experts: the choice of each row's experts, and their products. README.md has the maths.

Knows tensors; not models, sequences or schedules.
"""
