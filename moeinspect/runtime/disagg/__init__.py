"""Prefill worker, decode worker and balancer."""
