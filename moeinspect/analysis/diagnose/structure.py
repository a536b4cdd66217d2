"""Right rows at wrong places: shifted, in another layer, under other names."""

from __future__ import annotations

from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import counted, of_all
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
    if len(shifts) == 1 and len(shifts[0].layers) == 1:
        because = [f"{shifts[0].message}; the other layers are in place"]
        return diagnosis("layer-shift|mtp-alias", 0.7, because, mismatch.a)
    return diagnosis("layer-shift", 0.9, [f.message for f in shifts], mismatch.a)


def diagnose_shifted_rows(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """Causes of a constant lag, told apart by where it starts."""
    shifts = mismatch.found("shifted-rows")
    rows = sum(f.rows[1] - f.rows[0] for f in shifts if f.rows)
    if not shifts or rows < 0.8 * mismatch.rows.sum():
        return None
    lags = sorted({int(f.evidence["lag"]) for f in shifts})
    because = [
        f"{counted(rows, 'row')} hold the rows of other positions of the same request, at lag "
        f"{', '.join(f'{lag:+d}' for lag in lags)}"
    ]
    at_seam = sum(bool(f.evidence["seam_at_prompt_end"]) for f in shifts)
    if at_seam >= 0.8 * len(shifts):
        because.append(
            f"{of_all(at_seam, len(shifts), 'shift')} start where the prompt ends, or as many rows later as "
            "the lag is long: the seam between two workers' rows"
        )
        return diagnosis("merge-misaligned", 0.95 if mismatch.facts.disagg else 0.8, because, mismatch.a)
    if len(lags) == 1 and all(f.rows and f.rows[0] <= max(0, -lags[0]) for f in shifts):
        because.append("the same lag from the first row of each request on")
        return diagnosis("prompt-truncated|row-shift", 0.85, because, mismatch.a)
    return diagnosis("cp-slice|merge-misaligned|row-shift", 0.6, because, mismatch.a)
