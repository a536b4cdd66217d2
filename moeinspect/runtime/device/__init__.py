"""Streams and events of a device."""
