"""A model on its way to its pods: what it is, whether it fits, and which Job looks at or fetches it. Pure."""
