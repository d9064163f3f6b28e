"""The controller: turns InferenceServices into pods and replica counts. It never imports torch."""
