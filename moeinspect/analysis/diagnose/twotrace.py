"""Causes that only the comparison with a baseline shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from moeinspect.analysis.diagnose.buffer import diagnose_buffer
from moeinspect.analysis.diagnose.facts import diagnosis
from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.provenance import computed_nowhere, workers_of
from moeinspect.analysis.diagnose.words import counted, of_all, percent
from moeinspect.analysis.findings import Diagnosis, Finding
from moeinspect.analysis.rules.grouping import layers_text

_NEARLY_ALL = 0.95
_UNTOUCHED = 0.02
"""Largest share of mismatches, against the worst layer's, in a layer that a fault leaves alone."""


def diagnose_mismatch(mismatch: Mismatch) -> list[Diagnosis]:
    """Causes of the set mismatches that rounding and zero rows do not explain, best first."""
    if not mismatch.rows.any():
        return []
    for detector in _DETECTORS:
        found = detector(mismatch)
        if found is not None:
            return [found]
    return [_unknown(mismatch)]


def diagnose_tokens(mismatch: Mismatch) -> Iterator[Diagnosis]:
    """`tokens-diverged`: certain if everything before the first difference agrees."""
    differing = [f for f in mismatch.findings if f.rule == "token-mismatch"]
    if not differing:
        return
    pairs = len(mismatch.alignment.pairing.pairs)
    first = min(int(f.evidence["position"]) for f in differing)
    because = [
        f"the tokens of {of_all(len(differing), pairs, 'paired request')} differ, first at position {first}; "
        "rows from there on belong to other texts",
    ]
    before = f"the {counted(len(mismatch.alignment), 'row')} before"
    wrong = mismatch.comparison.cells.set_mismatch
    explained = not (wrong & ~mismatch.comparison.ties.explained_sets).any()
    if not wrong.any():
        because.append(f"{before} hold the same experts")
    elif explained:
        because.append(f"{before} differ at near-ties only: rounding may have turned a token over, too")
    else:
        because.append(f"{before} do not all agree, so the tokens may be a consequence")
    yield diagnosis("tokens-diverged", 0.9 if explained else 0.5, because, mismatch.a)


def diagnose_numerics(mismatch: Mismatch) -> Diagnosis:
    """All mismatches are rounding, or below the share that the user tolerates."""
    cells, ties = mismatch.comparison.cells, mismatch.comparison.ties
    total, near = int(cells.set_mismatch.sum()), int(ties.near_tie.sum())
    after = int(ties.cascade.sum())
    because = []
    if total:
        share = percent(total / cells.compared.sum())
        because.append(f"{counted(total, 'cell')} of {int(cells.compared.sum()):,} differ ({share})")
    if near:
        because.append(
            f"{near:,} of them at a near-tie: one expert differs and the gap at the k-th place is within "
            f"{mismatch.comparison.tolerance.margin:g} or less"
        )
    if after:
        because.append(f"{after:,} follow such a flip in a lower layer of the same or an earlier token")
    if near + after < total:
        because.append(f"{total - near - after:,} are merely below the tolerated share")
    if ties.order_tie.any():
        because.append(f"{counted(int(ties.order_tie.sum()), 'cell')} swap experts of nearly equal weight")
    explained = near + after == total
    return diagnosis("numerics", 0.9 if explained else 0.4, because, mismatch.a)


def _shifted_rows(mismatch: Mismatch) -> Diagnosis | None:
    shifts = _findings(mismatch, "shifted-rows")
    rows = sum(f.rows[1] - f.rows[0] for f in shifts if f.rows)
    if not shifts or rows < 0.8 * mismatch.rows.sum():
        return None
    lags = sorted({int(f.evidence["lag"]) for f in shifts})
    because = [
        f"{counted(rows, 'row')} hold the rows of other positions of the same request, at lag "
        f"{', '.join(f'{lag:+d}' for lag in lags)}"
    ]
    if all(f.evidence["seam_at_prompt_end"] for f in shifts):
        because.append("each shift starts where the prompt ends, the seam between two workers' rows")
        return diagnosis("merge-misaligned", 0.9, because, mismatch.a)
    if len(lags) == 1 and all(f.rows and f.rows[0] <= max(0, -lags[0]) for f in shifts):
        because.append("the same lag from the first row of each request on")
        return diagnosis("prompt-truncated|row-shift", 0.85, because, mismatch.a)
    return diagnosis("cp-slice|merge-misaligned|row-shift", 0.6, because, mismatch.a)


def _shifted_layers(mismatch: Mismatch) -> Diagnosis | None:
    shifts = _findings(mismatch, "shifted-layers")
    if not shifts:
        return None
    if len(shifts) == 1 and len(shifts[0].layers) == 1:
        because = [f"{shifts[0].message}; the other layers are in place"]
        return diagnosis("layer-shift|mtp-alias", 0.7, because, mismatch.a)
    return diagnosis("layer-shift", 0.9, [f.message for f in shifts], mismatch.a)


def _permuted(mismatch: Mismatch) -> Diagnosis | None:
    permuted = _findings(mismatch, "permuted-ids")
    return diagnosis("physical-ids", 0.9, [permuted[0].message], mismatch.a) if permuted else None


def _prompt_of_elsewhere(mismatch: Mismatch) -> Diagnosis | None:
    """Prompt rows that are wrong as a whole, in a disaggregated run: not merged, or never stored."""
    if mismatch.share_in("prompt") < _NEARLY_ALL or mismatch.facts.disagg is False:
        return None
    wrong = np.zeros(len(mismatch.a.rows), dtype=bool)
    wrong[mismatch.alignment.a_row[mismatch.rows]] = True
    workers = " and ".join(workers_of(mismatch.a, wrong))
    if (computed_nowhere(mismatch.a) & wrong).sum() >= _NEARLY_ALL * wrong.sum():
        because = [
            f"the wrong rows are prompt rows, and {workers} which returned them says that it never computed "
            "them (step -1): the rows of the worker that ran the prompt were not merged in",
            "they hold whatever its host buffer had under these KV slots",
        ]
        return diagnosis("no-merge", 0.95, because, mismatch.a)
    if mismatch.facts.disagg and mismatch.facts.overlap and workers and mismatch.share_of("prompt") > 0.9:
        because = [
            f"{percent(mismatch.share_of('prompt'))} of the prompt rows are wrong and no output row is",
            f"they come from {workers}, which says that it computed them: its host buffer was never written",
        ]
        return diagnosis("skip-finalize-prefill", 0.8, because, mismatch.a)
    return None


def _draft_layers(mismatch: Mismatch) -> Diagnosis | None:
    """Certain layers near chance, the others right: another model wrote these layers."""
    shares = mismatch.by_layer
    touched = shares > _UNTOUCHED * shares.max()
    places = np.flatnonzero(touched)
    chance = mismatch.layers[0].extra["chance_overlap"]
    overlap = mismatch.overlap_at(places)
    if touched.all() or shares[touched].min() < 0.05 or overlap > max(2 * chance, chance + 0.15):
        return None
    if mismatch.facts.draft is False:
        return None
    wrong = layers_text(tuple(int(mismatch.alignment.layers[i]) for i in places))
    fewest, most_elsewhere = float(shares[touched].min()), float(shares[~touched].max())
    because = [
        f"{wrong}: {'all' if fewest == 1 else f'at least {percent(fewest)} of the'} cells differ, with "
        f"{overlap:.2f} of the experts in common where chance gives {chance:.2f}; in the other "
        f"{counted(int((~touched).sum()), 'MoE layer')} "
        f"{f'at most {percent(most_elsewhere)}' if most_elsewhere else 'none'} differ",
        f"there {percent(mismatch.share_of('prompt'))} of the prompt rows and "
        f"{percent(mismatch.share_of('output'))} of the output rows are wrong",
    ]
    if mismatch.facts.draft:
        because.append("a draft model was configured: its MoE layers carry these layer ids, too")
        return diagnosis("draft-capture", 0.95, because, mismatch.a)
    return diagnosis("draft-capture", 0.6, because, mismatch.a)


def _cached_prefix(mismatch: Mismatch) -> Diagnosis | None:
    if mismatch.share_in("cached_prefix") < _NEARLY_ALL:
        return None
    because = [
        f"{percent(mismatch.share_in('cached_prefix'))} of the wrong rows are of a cached prefix, and "
        f"{percent(mismatch.share_of('cached_prefix'))} of all cached rows are wrong"
    ]
    return diagnosis("stale-slot", 0.8, because, mismatch.a)


def _output_only(mismatch: Mismatch) -> Diagnosis | None:
    """Output rows of drafted tokens: a sibling's row was kept, or the verify result was dropped."""
    if mismatch.share_in("output") < 1.0 or mismatch.facts.draft is False:
        return None
    because = [
        f"{percent(mismatch.share_of('output'))} of the output rows are wrong and no prompt row is",
        f"{percent(mismatch.overlap_at(np.arange(len(mismatch.layers))))} of the experts in common there",
    ]
    if mismatch.share_of("output") > 0.9:
        return diagnosis("verify-dropped", 0.7 if mismatch.facts.draft else 0.4, because, mismatch.a)
    if mismatch.facts.draft_tree:
        because.append("the draft was a tree: the accepted path was compacted in KV, not in the rows")
        return diagnosis("tree-rows", 0.9, because, mismatch.a)
    if mismatch.facts.draft is None:
        because.append("the trace does not tell whether a draft was configured")
        return diagnosis("tree-rows", 0.5, because, mismatch.a)
    return None


_DETECTORS: tuple[Callable[[Mismatch], Diagnosis | None], ...] = (
    _permuted,
    _shifted_layers,
    _prompt_of_elsewhere,
    diagnose_buffer,
    _shifted_rows,
    _draft_layers,
    _cached_prefix,
    _output_only,
)
"""Most specific first; the first that fits is taken."""


def _unknown(mismatch: Mismatch) -> Diagnosis:
    shares = mismatch.by_layer
    worst = int(shares.argmax())
    because = [
        f"{counted(int(mismatch.cells.sum()), 'cell')} in {counted(int(mismatch.rows.sum()), 'row')} differ: "
        f"{percent(mismatch.share_of('prompt'))} of prompt rows, "
        f"{percent(mismatch.share_of('output'))} of output rows",
        f"worst in layer {int(mismatch.alignment.layers[worst])} ({percent(float(shares[worst]))}), "
        f"{percent(mismatch.overlap_at(np.arange(len(shares))))} of the experts in common where they differ",
    ]
    because += [f.message for f in _findings(mismatch, "model-mismatch")]
    return diagnosis("unknown", 0.2, because, mismatch.a)


def _findings(mismatch: Mismatch, rule: str) -> list[Finding]:
    return [f for f in mismatch.findings if f.rule == rule and f.severity != "note"]
