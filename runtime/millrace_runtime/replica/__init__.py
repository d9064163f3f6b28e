"""One replica: its settings, its processes, and their start and end.

It composes api and engine with an executor. It must not know the meaning of a prompt or how a token is made.
The supervisor loads only the standard library, so it answers while everything else is busy or dead.
"""
