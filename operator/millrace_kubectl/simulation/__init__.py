"""`kubectl millrace simulate`: a service's own traffic in virtual time, under several autoscalers.

It starts no cluster and changes nothing. Nothing here may be loaded before the sub-command runs, and PyYAML
and matplotlib only where they are needed.
"""
