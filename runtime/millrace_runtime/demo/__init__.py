"""The shipped demo model: its text generator, its trainer, its evaluation and its files (stories/).

Knows nothing of the serving runtime: it writes a model folder as any Llama checkpoint looks.
"""
