"""Desired children as raw manifests, one file a kind. Pure."""
