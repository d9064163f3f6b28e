"""The sources of models, one file for each: it lists the files, and explains the source's refusals.

A source does not write files, and does not choose among them.
"""
