"""Our autoscaler beside others' rules, in virtual time: who is in time, and with how many replicas."""
