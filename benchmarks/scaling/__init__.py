"""Our autoscaler beside the real HorizontalPodAutoscaler: one ramp of load, on the local cluster."""
