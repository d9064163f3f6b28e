"""Commands for people who work on Millrace. They run on the system's Python, with nothing installed."""
