"""Commands for people who work on Millrace. Nothing here is installed, nor known to what is."""
