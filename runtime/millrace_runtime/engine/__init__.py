"""The engine: which sequence computes how many tokens in which step, and which blocks hold its KV.

It only decides: no torch, no I/O, no clock, no thread, no randomness. It makes step plans and
reads their results (`protocol`). It must not know the executor, the client or the meaning of a token.
"""
