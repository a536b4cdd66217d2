"""Right rows of other layers, or under other names."""

from __future__ import annotations

from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import counted
from moeinspect.analysis.findings import Diagnosis


def diagnose_permuted(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`physical-ids`: one renaming per layer, or names that change during the run."""
    permuted = mismatch.found("permuted-ids")
    if not permuted:
        return None
    because = [f.message for f in permuted]
    copies = mismatch.facts.redundant_experts
    if copies == 0:
        because.append("no expert was redundant, so none had another name than its own")
        return diagnosis("physical-ids", 0.5, because, mismatch.a)
    changes = [change for f in permuted for change in f.evidence.get("changes", ())]
    if copies and changes:
        interval = mismatch.a.run.run_config.get("rebalance_interval")
        first = changes[0]
        because.append(
            f"{counted(copies, 'redundant expert')} moved every {interval} forwards; the names of "
            f"{first['worker']} change first between its steps {first['steps'][0]} and {first['steps'][1]}"
        )
    return diagnosis("physical-ids", 0.95 if copies else 0.9, because, mismatch.a)


def diagnose_shifted_layers(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`layer-shift`, or `mtp-alias` where a single layer holds its neighbour's rows."""
    shifts = mismatch.found("shifted-layers")
    if not shifts:
        return None
    if len(shifts) == 1 and len(shifts[0].layers) == 1 and shifts[0].evidence["copies"]:
        because = [f"{shifts[0].message}; the other layers are in place"]
        return diagnosis("layer-shift|mtp-alias", 0.7, because, mismatch.a)
    return diagnosis("layer-shift", 0.96, [f.message for f in shifts], mismatch.a)
