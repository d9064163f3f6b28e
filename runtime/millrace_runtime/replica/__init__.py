"""One replica: its settings, its processes and how they live and end.

It composes api and engine with an executor, and must not know what a prompt means or how a token is made.
What the supervisor loads is standard library only, so it answers while everything else is busy or dead.
"""
