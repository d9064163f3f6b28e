"""What a service's status and Events say: causes, conditions, figures. Pure."""
