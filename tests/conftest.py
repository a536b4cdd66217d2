"""Shared helpers live in plain modules beside the tests (`tests/analysis/tracefactory.py`, ...).

A test marked `quick(n)` runs n of its many parameters; `pytest -m long` runs the others.
"""

import signal
import sys
import zlib
from collections import defaultdict

import pytest

RUNTIME = "moeinspect.runtime.worker.loading"


def pytest_configure():
    """Lets Ctrl-C interrupt the tests that send it, also where a shell's background job is deaf to it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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


def pytest_runtest_setup():
    """Reads embedded models once a process, from when the runtime is there."""
    if RUNTIME in sys.modules:
        import embedded_models

        embedded_models.keep()
