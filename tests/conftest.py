"""Shared helpers live in plain modules beside the tests (`tests/analysis/tracefactory.py`, ...)."""
