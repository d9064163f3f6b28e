"""One replica of a model: continuous batching over a paged KV cache, in OpenAI's and Anthropic's dialects."""
