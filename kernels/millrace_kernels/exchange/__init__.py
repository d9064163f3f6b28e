"""Workers that hold a model together: what their parts make. README.md has the maths.

Knows tensors; not models, sequences or schedules.
"""
