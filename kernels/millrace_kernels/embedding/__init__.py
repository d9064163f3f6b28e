"""Tokens to vectors, read out of a matrix packed for products.

Knows tensors; not models, sequences or schedules.
"""
