"""Products on GPUs: how a weight lies there, which product computes each number of rows, and the kernels.

`../README.md` has the maths.
"""
