"""From logits to tokens: penalties, masks, temperature, top-k, top-p, a seeded draw. README.md has the maths.

Knows tensors; not models, sequences or schedules.
"""
