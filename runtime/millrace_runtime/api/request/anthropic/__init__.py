"""POST /v1/messages: the bodies of Anthropic's dialect."""
