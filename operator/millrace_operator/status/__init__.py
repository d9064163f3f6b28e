"""A service's status and Events: causes, conditions, figures. Pure."""
