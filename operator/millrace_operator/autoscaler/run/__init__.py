"""Runs the autoscaler: fetches signals, lets `autoscale` decide, hands the decision to the planner."""
