"""Embedded models are read once a process: of a short run, much would be spent on reading them."""

import copy
import functools

from moeinspect.runtime.builtin_names import BUILTIN_PREFIX
from moeinspect.runtime.faults import NO_FAULTS
from moeinspect.runtime.models import loader
from moeinspect.runtime.worker import loading


def keep():
    """Lets the runs of this process load copies of what was read before."""
    assert loading.load_model in (loader.load_model, load_model)
    loading.load_model = load_model


def load_model(name, *, faults=NO_FAULTS, ranks=None, **options):
    """As `loader.load_model`; a rank's share is read each time."""
    if name.startswith(BUILTIN_PREFIX) and ranks is None:
        model, asked = _read(name, **options)
        if not any(fault in faults for fault in asked):
            return copy.deepcopy(model)
    return loader.load_model(name, faults=faults, ranks=ranks, **options)


@functools.lru_cache(maxsize=16)
def _read(name, **options):
    """The model without a fault, and the faults that were asked for on the way: any other changes nothing."""
    asked = _Asked()
    return loader.load_model(name, faults=asked, **options), frozenset(asked.names)


class _Asked:
    """No faults; keeps the names that were asked for."""

    def __init__(self):
        self.names = set()

    def __contains__(self, name):
        self.names.add(name)
        return False
