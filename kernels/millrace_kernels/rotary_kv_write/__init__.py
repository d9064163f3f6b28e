"""Norms and rotation of queries and keys, and the write of the KV cache. README.md has the maths.

Knows tensors; not models, sequences or schedules.
"""
