"""Shared helpers live in plain modules beside the tests (`tests/analysis/tracefactory.py`, ...).

A test marked `quick(n)` runs n of its many parameters; `pytest -m long` runs the others.
"""

import zlib
from collections import defaultdict

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks what exceeds a test's `quick` number as `long`; which ones stay depends on their names alone."""
    functions = defaultdict(list)
    for item in items:
        if item.get_closest_marker("quick") is not None:
            functions[item.nodeid.partition("[")[0]].append(item)
    for same in functions.values():
        kept = same[0].get_closest_marker("quick").args[0]
        for item in sorted(same, key=lambda one: zlib.crc32(one.nodeid.encode()))[kept:]:
            item.add_marker("long")
