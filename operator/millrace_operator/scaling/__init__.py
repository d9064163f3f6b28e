"""The autoscaling tick: fetches signals, asks `autoscale` to decide, hands the decision to the planner."""
