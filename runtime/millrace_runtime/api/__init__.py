"""A replica's HTTP: the OpenAI dialect, health, metrics and admission.

It talks to the engine over a socket and to the text worker over another; it must not know torch, the
scheduler or how the processes are composed.
"""
