"""Splits a model's answer into reasoning, content and tool calls while it is generated.

It must not know HTTP, the engine or tokens: text goes in, deltas come out.
"""
