"""One file for each architecture, which reads like its paper.

Models know layers. They must not know files, slots or schedules.
"""
