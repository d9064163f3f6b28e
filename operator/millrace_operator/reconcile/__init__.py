"""From a snapshot to a plan, purely; `loop` alone acts. Knows neither Kopf nor HTTP."""
