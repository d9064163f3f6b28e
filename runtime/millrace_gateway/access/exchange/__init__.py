"""Gateways' reports of use to each other, so that a limit holds across all of them."""
