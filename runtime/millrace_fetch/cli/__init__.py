"""The commands `millrace fetch` and `millrace size`, and their output to a terminal, a log or a port."""
