"""What probably went wrong: causes from the geometry of the data, with the evidence for each.

Reads findings, rows and what the run says of its switches; never `injected_faults`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.aliases import diagnose_added_layers
from moeinspect.analysis.diagnose.gaps import diagnose_declared
from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.onetrace import diagnose_trace
from moeinspect.analysis.diagnose.ranking import ranked
from moeinspect.analysis.diagnose.replay import diagnose_noop
from moeinspect.analysis.diagnose.twotrace import diagnose_mismatch
from moeinspect.analysis.diagnose.verdicts import diagnose_numerics, diagnose_tokens
from moeinspect.analysis.findings import Diagnosis, Finding, LayerStats, Verdict
from moeinspect.trace.schema import Trace

if TYPE_CHECKING:  # compare imports this package
    from moeinspect.analysis.compare.comparison import Comparison

__all__ = ["diagnose_check", "diagnose_diff"]

_SYMPTOMS = {"stale-rows", "repeated-rows"}
"""Rules that see from one trace, less well, what the comparison has already given a cause."""


def diagnose_check(traces: Sequence[Trace], findings: Sequence[Finding]) -> tuple[Diagnosis, ...]:
    """Causes of the one-trace findings of `traces`, best first; none for a clean report.

    A finding with `input` None belongs to the first trace. Notes are no reason for a diagnosis.
    """
    return ranked(_of_traces(traces, findings))


def diagnose_diff(
    comparison: Comparison,
    layers: tuple[LayerStats, ...],
    regions: Mapping[str, NDArray[np.bool_]],
    findings: Sequence[Finding],
    verdict: Verdict,
) -> tuple[Diagnosis, ...]:
    """Causes of what a comparison found, best first; none for a clean one.

    `regions` are rows [R] by region name, `findings` those of the comparison and of the one-trace rules.
    """
    if verdict == "clean":
        return ()
    mismatch = Mismatch(comparison, layers, tuple(findings), regions)
    if verdict == "numerics":
        noop = diagnose_noop(mismatch)
        return (*((noop,) if noop else ()), diagnose_numerics(mismatch))
    by_cells = diagnose_mismatch(mismatch)
    known = any(one.cause != "unknown" for one in by_cells)
    own = [f for f in findings if f.input is not None and not (known and f.rule in _SYMPTOMS)]
    found = by_cells + _of_traces((comparison.a, comparison.b), own)
    found += [*diagnose_added_layers(comparison), *diagnose_declared(mismatch), *diagnose_tokens(mismatch)]
    first = next(f for f in findings if f.severity != "note")
    return ranked(found or [diagnosis("unknown", 0.1, [first.message], comparison.a)])


def _of_traces(traces: Sequence[Trace], findings: Sequence[Finding]) -> list[Diagnosis]:
    found: list[Diagnosis] = []
    for number, trace in enumerate(traces):
        own = tuple(f for f in findings if (f.input or 0) == number and f.severity != "note")
        if own:
            found += diagnose_trace(trace, own) or [diagnosis("unknown", 0.1, [own[0].message], trace)]
    return found
