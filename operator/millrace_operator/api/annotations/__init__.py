"""What people ask of the operator by an annotation: the plugin writes it, the operator obeys it."""
