"""`kubectl millrace simulate`: a service's own traffic in virtual time, under several autoscalers.

It starts no cluster and changes nothing. The plugin loads these modules only when the sub-command runs, and
PyYAML and matplotlib only when it needs them.
"""
