"""A service's replica count: who decides it, rest at zero, and which replicas leave first. Pure."""
