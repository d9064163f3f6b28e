"""One decoder for all families, which reads like a paper.

Models know layers. They must not know files, slots or schedules.
"""
