"""The other gateways: their reports of use, so that a limit holds across all of them."""
