"""Recording the routed experts."""
