"""The front door: finds services and replicas, routes each request to a replica, and streams the answer."""
