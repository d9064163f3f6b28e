"""What the gateway counts and tells: metrics, and its stream to the leading operator."""
