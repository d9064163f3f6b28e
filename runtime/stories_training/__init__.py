"""The making of the shipped model `stories`: its text generator, its trainer, its evaluation.

It runs from a checkout and is not in the wheel, which contains only the model's files. It does not depend on
the serving runtime: it writes a model folder in the form of any Llama checkpoint.
"""
