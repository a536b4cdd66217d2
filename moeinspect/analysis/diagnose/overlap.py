"""Rows that overlap scheduling overwrote, or that were collected before their copy had arrived."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.facts import knows_workers
from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import of_all, percent
from moeinspect.analysis.findings import Diagnosis
from moeinspect.trace.schema import Origin

_ENOUGH = 0.5
"""Share of mismatching rows found in the next step; rows of rejected drafts are not in a trace."""

_WHOLE_ROWS = 0.75
"""Smallest share of wrong cells in wrong rows that were never stored; some experts agree by chance."""

_NEARLY_ALL, _MOST = 0.9, 0.5

_LEFT_OVER = 0.2
"""Share of wrong rows that hold what their slot had before: what rejected drafts left is in no trace."""

_BEYOND_CHANCE = 9
"""Orders of magnitude by which rows must not all be of one step by chance."""

_FEW = 3
"""Wrong rows that are too few to show where they come from."""

_CONTROL = 0.2
"""Largest share that may be found in the step before instead."""


def diagnose_overwritten(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`buffer-reuse` that looks like shifted rows: what one request's equal chunks overwrite is its own.

    A later shift knows nothing of steps: it is within a chunk, or another one where tokens are decoded.
    """
    if len(sources) < 2 or not knows_workers(mismatch.a):
        return None
    next_step, prefilled = sources.at_step(1), ~mismatch.is_decoded[sources.rows]
    kinds = [kind for kind in (prefilled, ~prefilled) if sources.anywhere[kind].any()]
    if not sources.anywhere[prefilled].any() or sources.at_step(0).mean() > _CONTROL:
        return None
    if any(next_step[kind].sum() < _NEARLY_ALL * sources.anywhere[kind].sum() for kind in kinds):
        return None
    return diagnose_buffer(mismatch, sources)


def diagnose_buffer(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`buffer-reuse`: wrong rows are B's rows of the tokens that A computed one step later."""
    if len(sources) < 2 or not knows_workers(mismatch.a) or mismatch.facts.overlap is False:
        return None
    next_step, last_step = sources.at_step(1), float(sources.at_step(-1).mean())
    may_be_rejected = next_step.mean() < _ENOUGH
    if last_step > _CONTROL or (may_be_rejected and not _only_in_next_step(mismatch, sources, next_step)):
        return None
    noun = "sampled wrong row" if sources.is_sample else "wrong row"
    because = [
        f"{of_all(int(next_step.sum()), len(sources), noun)} hold, in all MoE layers, what the same worker "
        f"computed one step later: they equal B's rows of the tokens of step + 1 ({percent(last_step)} equal "
        "step - 1's)",
        "the device buffer was overwritten by the next forward before its rows were copied",
    ]
    if may_be_rejected:
        because.append("the others are no token's of the trace, as rows of rejected draft tokens are")
    if mismatch.facts.graph and _prefill_is_spared(mismatch):
        because[1] = (
            "rows of prefill steps are right, though other forwards follow them: what decode steps share is "
            "a graph's static buffer, which was read late"
        )
        return diagnosis("graph-static-rows", 0.85, because, mismatch.a)
    if mismatch.facts.overlap:
        because.append(
            "overlap scheduling was on: the next forward runs while the last one's rows are copied"
        )
    return diagnosis("buffer-reuse", 0.6 + 0.37 * float(next_step.mean()), because, mismatch.a)


def _only_in_next_step(mismatch: Mismatch, sources: Sources, next_step: NDArray[np.bool_]) -> bool:
    """With a draft: whatever is a token's of the trace at all is one of the next step, and not by chance."""
    found = int(next_step.sum())
    if not mismatch.facts.draft or not found or found < _NEARLY_ALL * sources.anywhere.sum():
        return False
    keys = np.stack([mismatch.of_a("worker"), mismatch.of_a("step")], axis=1)
    _, sizes = np.unique(keys, axis=0, return_counts=True)
    return bool(found * np.log10(len(mismatch.alignment) / sizes.max()) >= _BEYOND_CHANCE)


def _prefill_is_spared(mismatch: Mismatch) -> bool:
    """Only rows of decode steps are wrong, and some prefill step is followed by another of its worker."""
    if not mismatch.is_decoded[mismatch.rows].all():
        return False
    step, worker = mismatch.of_a("step"), mismatch.of_a("worker")
    prefilled = ~mismatch.is_decoded & (step >= 0)
    last = np.full(int(worker.max(initial=0)) + 1, -1, dtype=np.int64)
    np.maximum.at(last, worker, step)
    return bool((prefilled & (step < last[worker])).any())


def diagnose_tails(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`read-early`: the last rows of requests hold what their slots had before, or zeros."""
    if mismatch.facts.overlap is False or not knows_workers(mismatch.a):
        return None
    if mismatch.cells[mismatch.rows].mean() < _WHOLE_ROWS:
        return None  # what was never stored is wrong in every layer; rounding is not
    unwritten = mismatch.rows | mismatch.unrouted
    tails = tail_rows(mismatch, unwritten)
    if tails[unwritten].mean() < _NEARLY_ALL:
        return None
    if mismatch.facts.draft is not False and _loses_all_verified(mismatch, unwritten):
        return None
    is_left_over = bool(mismatch.unrouted.any() or sources.in_slot.mean() > _LEFT_OVER)
    decoded = mismatch.is_decoded
    if not is_left_over and mismatch.facts.draft_tree and unwritten[decoded].mean() > _MOST:
        return None  # outputs so short that their last steps are most of them: a tree loses those, too
    touched = len(np.unique(mismatch.alignment.pair[unwritten]))
    because = [
        f"the wrong rows stand at the end of {of_all(touched, touched, 'affected request')}: rows of the "
        "last steps were collected before their copy had arrived",
    ]
    if sources.in_slot.any():
        because.append(
            f"{percent(float(sources.in_slot.mean()))} of them hold what another request had under the same "
            "KV slot"
        )
    if not is_left_over and unwritten.sum() <= _FEW and "|" in (cause := _few_last_rows(mismatch)):
        because.append("so few rows, of no token of the trace, may as well be those of rejected draft tokens")
        return diagnosis(cause, 0.6, because, mismatch.a)
    sure = 0.85 if is_left_over else 0.65
    return diagnosis("read-early", sure if mismatch.facts.overlap else 0.5, because, mismatch.a)


def _few_last_rows(mismatch: Mismatch) -> str:
    """What the run's switches leave possible for a few strange rows at the end of requests."""
    facts, names = mismatch.facts, ["read-early"]
    if facts.draft and (facts.dp_size or 1) > 1:
        names.append("dp-slice")
    if facts.draft_tree:
        names.append("tree-rows")
        if facts.draft_layers:
            names.append("draft-forward-end")
    return "|".join(sorted(names))


def _loses_all_verified(mismatch: Mismatch, unwritten: NDArray[np.bool_]) -> bool:
    """All rows of verify steps are wrong and no others, though others end requests as well.

    Outputs may be so short that the last steps are all of them; reading early loses any last step.
    """
    verified = mismatch.of_a("origin") == Origin.VERIFY
    if not np.array_equal(verified, unwritten):
        return False
    others = tail_rows(mismatch, np.ones_like(unwritten)) & ~verified
    ended = np.unique(mismatch.alignment.pair[verified])
    return bool((others & ~np.isin(mismatch.alignment.pair, ended)).any())


def tail_rows(mismatch: Mismatch, unwritten: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows [R] of the wrong run that ends a request and is computed by its last two steps.

    A request whose rows could not be compared to their end, since its tokens diverged, shows no end.
    """
    tails = np.zeros(len(unwritten), dtype=bool)
    step, num_rows = mismatch.of_a("step"), mismatch.of_request("num_rows")
    for pair in range(len(mismatch.alignment.pairing.pairs)):
        own = mismatch.alignment.rows_of_pair(pair)
        if own.stop == own.start or own.stop - own.start < num_rows[own.start]:
            continue
        right = np.flatnonzero(~unwritten[own])
        start = own.start + (int(right[-1]) + 1 if len(right) else 0)
        late = np.unique(step[own])[-2:]
        tails[start : own.stop] = np.isin(step[start : own.stop], late)
    return tails
