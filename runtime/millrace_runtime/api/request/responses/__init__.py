"""POST /v1/responses: the bodies of OpenAI's newer dialect."""
