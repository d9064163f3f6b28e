"""Other autoscalers' rules, written by us from their descriptions, and a bound that knows the future.

Each rule sees only `Signals`, moves as its description says, and has one knob with that rule's default. None
of them is the original: a name says whose rule it is.
"""
