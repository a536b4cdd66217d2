"""What probably went wrong: causes from the geometry of the data, with the evidence for each.

Reads findings, rows and what the run says of its switches; never `injected_faults`.
"""

from __future__ import annotations

from collections.abc import Sequence

from moeinspect.analysis.diagnose.facts import diagnosis
from moeinspect.analysis.diagnose.onetrace import diagnose_trace
from moeinspect.analysis.diagnose.ranking import ranked
from moeinspect.analysis.findings import Diagnosis, Finding
from moeinspect.trace.schema import Trace

__all__ = ["diagnose_check"]


def diagnose_check(traces: Sequence[Trace], findings: Sequence[Finding]) -> tuple[Diagnosis, ...]:
    """Causes of the one-trace findings of `traces`, best first; none for a clean report.

    A finding with `input` None belongs to the first trace. Notes are no reason for a diagnosis.
    """
    found: list[Diagnosis] = []
    for number, trace in enumerate(traces):
        own = tuple(f for f in findings if (f.input or 0) == number and f.severity != "note")
        if own:
            named = diagnose_trace(trace, own)
            found += named or [diagnosis("unknown", 0.1, [own[0].message], trace)]
    return ranked(found)
