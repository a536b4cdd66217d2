"""Captured rows of followers on their way to the leader."""

from __future__ import annotations

from moeinspect.runtime.capture.capturer import RoutedExpertsCapturer
from moeinspect.runtime.faults import ActiveFaults
from moeinspect.runtime.forward_batch import ForwardBatch
from moeinspect.runtime.parallel.communicator import Communicator


def send_captured(
    capturer: RoutedExpertsCapturer, batch: ForwardBatch, ranks: Communicator, faults: ActiveFaults
) -> None:
    """A follower's end of a forward with rows: its part of what was captured goes to its leader."""
    raise RuntimeError("models are not spread over ranks yet")
