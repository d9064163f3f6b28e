"""A model's way to its pods: what it is, whether it fits, and which Job looks at it or fetches it. Pure."""
