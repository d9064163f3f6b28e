"""One replica of a model: continuous batching over a paged KV cache, behind OpenAI's HTTP dialect."""
