"""`mtp-alias`: a layer that holds the rows of another one, which has them rightly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import counted
from moeinspect.analysis.findings import Diagnosis, Finding
from moeinspect.analysis.rules.grouping import layers_text
from moeinspect.trace.schema import Trace, Validity

if TYPE_CHECKING:  # compare imports this package
    from moeinspect.analysis.compare.comparison import Comparison

_WRONG = 0.5
"""Share of its cells that a wrong layer has to lose; rounding turns over fewer."""


def diagnose_equal_layers(trace: Trace, findings: tuple[Finding, ...]) -> Diagnosis:
    """The rule's own finding: two layers that are equal everywhere."""
    moe = trace.model.moe_layers
    because = [finding.message for finding in findings]
    later = sorted(finding.layers[1] for finding in findings)
    neighbours = any(moe.index(two) - moe.index(one) == 1 for one, two in (f.layers for f in findings))
    if later == list(moe[-len(later) :]) and not neighbours:
        because.append("they are the last layers, where those of multi-token prediction stand")
        return diagnosis("mtp-alias", 0.9, because, trace)
    return diagnosis("layer-shift|mtp-alias", 0.7, because, trace)


def diagnose_aliased(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """Every wrong layer equals a layer of A that is right and no neighbour, and does not in the baseline."""
    wrong = np.flatnonzero(mismatch.by_layer >= _WRONG)
    right = np.flatnonzero(mismatch.by_layer < _WRONG)
    if not len(wrong) or not len(right):
        return None
    rows = np.arange(len(mismatch.alignment))
    ours, theirs = mismatch.ids("a", rows), mismatch.ids("b", rows)
    pairs = []
    for place in wrong.tolist():
        source = next((r for r in right.tolist() if np.array_equal(ours[:, place], ours[:, r])), None)
        if source is None or np.array_equal(theirs[:, place], theirs[:, source]):
            return None
        if abs(source - place) == 1:
            return None  # a shift by one layer looks the same
        pairs.append((int(mismatch.alignment.layers[place]), int(mismatch.alignment.layers[source])))
    because = [
        f"layer {layer} holds the ids of layer {source} in all {counted(len(rows), 'row')}, which has them "
        "rightly"
        for layer, source in pairs
    ]
    return diagnosis("mtp-alias", 0.95, because, mismatch.a)


def diagnose_added_layers(comparison: Comparison) -> list[Diagnosis]:
    """MoE layers that the baseline's model lacks, each equal to one that it has."""
    a, b = comparison.a, comparison.b
    added = sorted(set(a.model.moe_layers) - set(b.model.moe_layers))
    known = sorted(set(a.model.moe_layers) & set(b.model.moe_layers))
    ids = a.rows.expert_ids[a.rows.validity == Validity.REAL]
    place = {int(layer): at for at, layer in enumerate(a.axis_layers())}
    if not added or not len(ids):
        return []
    sources = [
        next((k for k in known if np.array_equal(ids[:, place[layer]], ids[:, place[k]])), None)
        for layer in added
    ]
    repeated = tuple(source for source in sources if source is not None)
    if len(repeated) < len(added):
        return []
    because = [
        f"the baseline has no {layers_text(tuple(added))}, and there A repeats {layers_text(repeated)} in "
        "every row"
    ]
    return [diagnosis("mtp-alias", 0.9, because, a)]
