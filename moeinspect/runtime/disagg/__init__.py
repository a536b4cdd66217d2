"""Prefill and decode workers: the two sides of a request, and how its KV gets from one to the other."""
