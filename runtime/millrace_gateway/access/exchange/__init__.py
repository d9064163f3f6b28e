"""What gateways tell each other about use, so that a limit holds across all of them."""
