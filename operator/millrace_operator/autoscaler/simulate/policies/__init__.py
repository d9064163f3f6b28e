"""Other autoscalers' rules, written anew from their descriptions, and a bound that knows the future.

Each sees only what `Signals` shows, moves as its own rule says, and has one knob with that rule's default.
None of them is the original: names say whose rule it is.
"""
