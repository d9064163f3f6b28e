"""What a family is made of: how it reads config.json, where files have its tensors, and what is refused.

Families use it. It must not know any of them.
"""
