"""Which tenant is next when a service is full. Pure."""
