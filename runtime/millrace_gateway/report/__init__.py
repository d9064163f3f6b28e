"""The metrics of the gateway, and its stream of loads to the leading operator."""
