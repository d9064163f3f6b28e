"""Text to tokens and back: templates, tokenising, detokenising, stop strings, the parsers of answers, and the
text worker.

It must not know HTTP, the engine or torch. Templates and tokenising may take long or much memory for a
client's input. They run in the text worker, a process that can be killed.
"""
