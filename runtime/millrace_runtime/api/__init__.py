"""A replica's HTTP: OpenAI's and Anthropic's dialects, health, metrics and admission.

It talks to the engine and to the text worker over one socket each. It must not know torch, the scheduler or
how the processes are composed.
"""
