"""What the machine that runs the tests has to do besides."""

import os


def slowdown():
    """How many times longer everything may take than at rest: processes that want a core, for each core."""
    return max(1.0, max(os.getloadavg()[:2]) / (os.cpu_count() or 1))
