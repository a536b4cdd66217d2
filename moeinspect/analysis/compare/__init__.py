"""Comparison of two traces, cell by cell."""
