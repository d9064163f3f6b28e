"""Our runtime beside other engines on the same machine, prompts and weights.

What is compared is a ratio within one round: a shared machine's speed moves by half within an hour.
"""
