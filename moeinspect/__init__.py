"""moeinspect: a debugger for the routing of Mixture-of-Experts language models."""

__version__ = "0.1.0"
