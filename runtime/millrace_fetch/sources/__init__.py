"""Where models come from, one file a source: each lists its files and says what its refusals mean.

A source does not write files and does not choose among them.
"""
