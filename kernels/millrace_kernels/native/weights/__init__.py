"""Weights as the library's products read them: in strips of outputs, plain or quantised, in huge pages."""
