"""`kubectl millrace`: commands for people on call. It reads and writes through their own kubectl.

So each of kubectl's ways to sign in works here too. It uses only the pure parts of the operator, and loads no
heavy library: it must answer at once.
"""
