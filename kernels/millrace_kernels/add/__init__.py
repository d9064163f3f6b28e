"""A sum of two results of a step. On the torch path it is torch's own, on CPUs and GPUs.

Knows tensors; not models, sequences or schedules.
"""
