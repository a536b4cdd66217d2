"""What probably went wrong: causes from the geometry of the data, with the evidence for each.

Reads findings, rows and what the run says of its switches; never `injected_faults`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.cells import gather
from moeinspect.analysis.diagnose.aliases import diagnose_added_layers
from moeinspect.analysis.diagnose.gaps import diagnose_absent, diagnose_declared
from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.onetrace import diagnose_trace
from moeinspect.analysis.diagnose.provenance import cells_of_findings, named_rows
from moeinspect.analysis.diagnose.ranking import Causes, ranked
from moeinspect.analysis.diagnose.replay import diagnose_noop
from moeinspect.analysis.diagnose.twotrace import SYMPTOMS, CellCauses, diagnose_mismatch
from moeinspect.analysis.diagnose.verdicts import diagnose_numerics, diagnose_tokens
from moeinspect.analysis.findings import Diagnosis, Finding, LayerStats, Verdict
from moeinspect.trace.schema import Trace

if TYPE_CHECKING:  # compare imports this package
    from moeinspect.analysis.compare.comparison import Comparison

__all__ = ["Causes", "diagnose_check", "diagnose_diff"]

_MOST = 0.5


def diagnose_check(traces: Sequence[Trace], findings: Sequence[Finding]) -> Causes:
    """Causes of the one-trace findings of `traces`, best first; none for a clean report.

    A finding with `input` None belongs to the first trace. Notes are no reason for a diagnosis.
    """
    return ranked(_of_traces(traces, findings, findings))


def diagnose_diff(
    comparison: Comparison,
    layers: tuple[LayerStats, ...],
    regions: Mapping[str, NDArray[np.bool_]],
    findings: Sequence[Finding],
    verdict: Verdict,
) -> Causes:
    """Causes of what a comparison found, best first; none for a clean one.

    `regions` are rows [R] by region name, `findings` those of the comparison and of the one-trace rules.
    """
    if verdict == "clean":
        return Causes()
    mismatch = Mismatch(comparison, layers, tuple(findings), regions)
    if verdict == "numerics":
        noop = diagnose_noop(mismatch)
        return Causes((*((noop,) if noop else ()), diagnose_numerics(mismatch)))
    by_cells = diagnose_mismatch(mismatch)
    own = [f for f in findings if f.input is not None and f.rule not in SYMPTOMS]
    symptoms = _unexplained_symptoms(by_cells, findings)
    by_rules = _of_traces((comparison.a, comparison.b), own + symptoms, findings)
    by_cells = by_cells.without(_compared_cells(comparison.a, symptoms, by_cells.rest))
    found = [*by_cells.named, *by_rules, *diagnose_added_layers(comparison)]
    found += [*diagnose_declared(mismatch), *diagnose_tokens(mismatch)]
    if not found:
        found += diagnose_absent(mismatch)
    left = by_cells.left()
    if found and not by_cells.loses_a_layer:
        found, left = found + left, []
    first = next(f for f in findings if f.severity != "note")
    if not found and not left:
        left = [diagnosis("unknown", 0.1, [first.message], comparison.a)]
    return ranked(found, left)


def _unexplained_symptoms(by_cells: CellCauses, findings: Sequence[Finding]) -> list[Finding]:
    """Symptoms that the causes of the compared cells leave unexplained: all where there is none."""
    symptoms = [f for f in findings if f.rule in SYMPTOMS and f.input is not None]
    if not by_cells.named:
        return symptoms
    rest, trace = by_cells.rest, by_cells.rest.a
    wrong = np.zeros(len(trace.rows), dtype=bool)
    wrong[rest.alignment.a_row[rest.rows]] = True
    own = [f for f in symptoms if f.input == 0]
    return [f for f, rows in named_rows(trace, own) if wrong[rows].mean() > _MOST]


def _compared_cells(trace: Trace, findings: Sequence[Finding], rest: Mismatch) -> NDArray[np.bool_]:
    """Cells [R, L] of the comparison that findings of A name."""
    named = cells_of_findings(trace, [f for f in findings if f.input == 0])
    return gather(named, rest.alignment.a_row, rest.alignment.a_axis)


def _of_traces(
    traces: Sequence[Trace], findings: Sequence[Finding], evidence: Sequence[Finding]
) -> list[Diagnosis]:
    found: list[Diagnosis] = []
    for number, trace in enumerate(traces):
        own, all_own = (
            tuple(f for f in some if (f.input or 0) == number and f.severity != "note")
            for some in (findings, evidence)
        )
        if own:
            found += diagnose_trace(trace, own, all_own) or [
                diagnosis("unknown", 0.1, [own[0].message], trace)
            ]
    return found
