"""The desired children as raw manifests. Pure."""
