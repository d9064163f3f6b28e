"""Products with a weight, for any number of rows. README.md has the maths and the packed layout.

Knows tensors; not models, sequences or schedules.
"""
