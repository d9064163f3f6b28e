"""Runs step plans with torch: loading, KV tensors, slots, model runner, sampler.

It knows the device's contents. It must not know the scheduler, HTTP, chat or grammars.
"""
