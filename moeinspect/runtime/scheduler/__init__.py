"""Continuous batching: which rows run in which step, and what is done with the results."""
