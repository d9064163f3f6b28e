"""How the shipped model `stories` was made: its text generator, its trainer, its evaluation.

It runs from a checkout and is not in the wheel, which carries the model's files alone. It knows nothing of
the serving runtime: it writes a model folder as any Llama checkpoint looks.
"""
