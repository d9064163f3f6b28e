"""Attention over a paged KV cache. README.md has the maths.

Knows tensors; not models, sequences or schedules.
"""
