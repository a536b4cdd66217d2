"""Target-only runs are computed once a process: most of what a `diff` costs is a baseline made before.

What is asked and what comes out is the command's own; only the forwards of a question that was answered
before are left out. That the same question always gets the same answer is for `tests/runtime` to show.
"""

from dataclasses import fields

import numpy as np

from moeinspect.runtime.engine import LocalRuntime

_answers = {}
_whole = LocalRuntime.generate


def generate(self, requests):
    """As `LocalRuntime.generate`; a target-only run ends its requests in the order of their keys."""
    if not self.config.target_only:
        yield from _whole(self, requests)
        return
    self.check(requests)
    requests = sorted(requests, key=lambda one: one.key)
    question = (self.config, self.model.fingerprint, tuple(requests))
    if question not in _answers:
        _answers[question] = [_unchangeable(ended) for ended in _whole(self, requests)]
    yield from _answers[question]


def _unchangeable(ended):
    for field in fields(ended):
        value = getattr(ended, field.name)
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return ended
