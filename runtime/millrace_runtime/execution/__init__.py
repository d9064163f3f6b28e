"""Runs step plans with torch: loading, KV tensors, slots, model runner, sampler.

Knows what lies on the device; must not know the scheduler, HTTP, chat or grammars.
"""
