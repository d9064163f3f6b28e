"""Commands for who works on Millrace. Nothing here is installed, and nothing that is installed knows it."""
