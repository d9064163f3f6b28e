"""The commands `millrace fetch` and `millrace size`, and what a terminal, a log or a port shows of them."""
