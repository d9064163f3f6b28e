"""The GPU campaign: what our GPU path does on a real GPU, reported as completely as half an hour allows.

A part is a module with its steps. A step is a function that yields rows. Each step runs in a process of its
own, because an error on the device spoils everything that the process does afterwards.
"""
