"""What a trace calls its workers."""

from __future__ import annotations

from moeinspect.trace.schema import Trace


def worker_name(trace: Trace, worker: int) -> str:
    """The name of worker number `worker`, or its number where the trace has no name for it."""
    names = trace.worker_names
    return names[worker] if worker < len(names) else f"worker {worker}"
