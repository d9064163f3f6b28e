"""The front door: finds services and replicas, routes a request to one, and streams the answer through."""
