"""`tp-shard`: in each step the rows of other tensor-parallel ranks are zero, a tail of the step's rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.facts import RunFacts, knows_workers
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.provenance import cached_rows, prompt_rows, row_requests
from moeinspect.analysis.diagnose.words import counted, of_all, percent
from moeinspect.analysis.findings import Diagnosis
from moeinspect.trace.schema import Origin, Trace

_NEARLY_ALL = 0.95
_FOLLOWED = 0.3
"""Share of the touched requests that need a right row after a zero one: a shard is no lost end."""

_FEWEST_PROMPTS = 2
_LARGEST_SHARE = 0.75
"""Share of a prompt that one rank can have: half, if there are two, and what rounding up adds."""

_MOST = 0.5
_SHORTEST, _LEAST_LOST = 4, 0.15
"""Rows of a zero run, and share of the prompt rows that are lost and kept, where steps are not known."""


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps with zero rows. In `tails` of them the zeros stand where a shard would leave them."""

    touched: int
    tails: int
    share: float
    """Share of zero rows in them."""
    clean: NDArray[np.int64]
    """Rows of each prefill and decode step without a zero row: verify steps had more than a trace holds."""
    lossy: NDArray[np.int64]
    """Rows of each prefill and decode step with one."""
    explained: bool
    """Nearly every zero row says that some step computed it."""


def diagnose_shards(trace: Trace, facts: RunFacts, zero: NDArray[np.bool_]) -> Diagnosis | None:
    """`tp-shard` if the zero rows [R] are the tails of steps, or, where steps are not known, of prompts."""
    if facts.tp_size == 1:
        return None
    goes_on = _goes_on(trace, zero)
    if not goes_on and not (facts.overlap is False and facts.tp_size is not None):
        return None  # without overlap no end is lost
    if not knows_workers(trace):
        if not goes_on:
            return None
        return _prompt_tails(trace, facts, zero) or _alternating(trace, facts, zero)
    steps = _look_at_steps(trace, zero)
    if not steps.explained or steps.tails < _NEARLY_ALL * steps.touched:
        return None
    if not len(steps.lossy) or _of_any_length(steps):
        return None
    because = [
        f"{percent(steps.share)} of the rows of {counted(steps.touched, 'step')} are zero: in each step a "
        "tail, behind right rows",
    ]
    longest = int(steps.clean.max(initial=0))
    if 0 < longest < steps.lossy.min():
        because.append(
            f"steps of up to {counted(longest, 'row')} have no zero row, as if they all were "
            "in the first rank's share"
        )
    if facts.tp_size is not None:
        because.append(
            f"the run had {facts.tp_size} tensor-parallel ranks, each with a share of a step's rows: those "
            "of the other ranks were never gathered"
        )
    sure = 0.95 if goes_on else 0.8
    return diagnosis("tp-shard", sure if facts.tp_size is not None else 0.7, because, trace)


def _goes_on(trace: Trace, zero: NDArray[np.bool_]) -> bool:
    """Whether right rows follow zero ones in many of the touched requests."""
    touched, followed = 0, 0
    for request in range(len(trace.requests)):
        own = zero[trace.row_range(request)]
        touched += bool(own.any())
        followed += bool(own.any() and not own[int(own.argmax()) :].all())
    return touched > 0 and followed >= _FOLLOWED * touched


def _of_any_length(steps: _Steps) -> bool:
    """Whether clean steps are as long as lossy ones: what a shard loses depends on the length alone."""
    as_long = int((steps.clean >= np.median(steps.lossy)).sum())
    return as_long > (1 - _NEARLY_ALL) * len(steps.lossy)


def _look_at_steps(trace: Trace, zero: NDArray[np.bool_]) -> _Steps:
    """Groups the rows that were computed by worker and step, requests in any order within.

    Rows of a cached prefix tell the step that first computed them, which may have had more rows than are
    cached: they count where no request of the trace has that step's own rows.
    """
    rows, request, cached = trace.rows, row_requests(trace), cached_rows(trace)
    place = np.flatnonzero((rows.step >= 0) & (request >= 0))
    asked = ~cached[place]
    if (zero & cached).any():
        asked |= _are_first_of(trace, place, cached)
    place = place[asked]
    _, step = np.unique(_step_keys(trace, place), return_inverse=True)
    order = np.lexsort((place, step.reshape(-1)))
    place, step = place[order], step.reshape(-1)[order]
    lost, owner = zero[place], request[place]
    num_steps = int(step[-1]) + 1 if len(step) else 0

    def per_step(marked: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.bincount(step[marked], minlength=num_steps)

    size, lost_rows = np.bincount(step, minlength=num_steps), per_step(lost)
    goes_on = np.zeros(len(step), dtype=bool)
    goes_on[1:] = (step[1:] == step[:-1]) & (owner[1:] == owner[:-1])
    was_lost = np.roll(lost, 1)
    # The rows of one request in one step stand in batch order: once lost, always lost.
    in_order = per_step(goes_on & was_lost & ~lost) == 0
    cut_once = per_step(goes_on & ~was_lost & lost) <= 1
    touched = lost_rows > 0
    sized = per_step(rows.origin[place] == Origin.VERIFY) == 0
    whole = per_step(cached[place]) == 0
    return _Steps(
        touched=int(touched.sum()),
        tails=int((touched & in_order & cut_once & (lost_rows < size)).sum()),
        share=float(lost_rows[touched].sum() / max(1, size[touched].sum())),
        clean=size[sized & whole & ~touched],
        lossy=size[sized & touched],
        explained=_explains(trace, zero, place[lost]),
    )


def _step_keys(trace: Trace, place: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for worker and step of each of these rows [n]."""
    rows = trace.rows
    return np.asarray((rows.worker[place].astype(np.int64) << 40) + rows.step[place])


def _are_first_of(trace: Trace, place: NDArray[np.int64], cached: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which of these rows [n] are cached ones of a step without rows of its own, once for each slot."""
    is_cached = cached[place]
    keys = _step_keys(trace, place)
    slots = np.stack([keys, trace.rows.slot[place].astype(np.int64)], axis=1)
    _, first = np.unique(slots[is_cached], axis=0, return_index=True)
    is_first = np.zeros(len(place), dtype=bool)
    is_first[np.flatnonzero(is_cached)[first]] = True
    return np.asarray(is_first & ~np.isin(keys, keys[~is_cached]))


def _explains(trace: Trace, zero: NDArray[np.bool_], lost: NDArray[np.int64]) -> bool:
    """Whether nearly all zero rows [R] are of the steps of the rows `lost` [n]."""
    keys = _step_keys(trace, np.flatnonzero(zero))
    return bool(len(keys) and np.isin(keys, _step_keys(trace, lost)).mean() >= _NEARLY_ALL)


def _prompt_tails(trace: Trace, facts: RunFacts, zero: NDArray[np.bool_]) -> Diagnosis | None:
    """Without steps: prompts that ran in one chunk keep their first rows, and outputs are right."""
    prompt = prompt_rows(trace)
    touched, tails, kept, whole = 0, 0, 0, 0
    for request in range(len(trace.requests)):
        own = trace.row_range(request)
        lost = zero[own]
        if not lost.any():
            continue
        touched += 1
        first, size = int(lost.argmax()), int(prompt[own].sum())
        if first > 0 and lost[first:size].all() and not lost[size:].any():
            tails, kept, whole = tails + 1, kept + first, whole + size
    if tails < max(_FEWEST_PROMPTS, _NEARLY_ALL * touched) or kept > _LARGEST_SHARE * whole:
        return None
    because = [
        f"the zero rows are the last ones of the prompt in {of_all(tails, touched, 'affected request')}: "
        f"{percent(kept / whole)} of these prompts are right, and so are the outputs",
        "where a step's rows are spread over tensor-parallel ranks, the first rank has the first rows, and "
        "steps of a few rows as a whole",
    ]
    return diagnosis("tp-shard", 0.8 if facts.tp_size is not None else 0.5, because, trace)


def _alternating(trace: Trace, facts: RunFacts, zero: NDArray[np.bool_]) -> Diagnosis | None:
    """Without steps: inside of prompts, runs of right and of zero rows take turns, as chunks are spread."""
    prompt, request = prompt_rows(trace), row_requests(trace)
    joined = (request[1:] == request[:-1]) & (request[1:] >= 0)
    begins = np.flatnonzero(joined & ~zero[:-1] & zero[1:]) + 1
    ends = np.flatnonzero(joined & zero[:-1] & ~zero[1:]) + 1
    touched = np.unique(request[zero])
    both = np.intersect1d(request[begins], request[ends])
    if len(both) < _FEWEST_PROMPTS or len(both) < _MOST * len(touched) or prompt[begins].mean() < _MOST:
        return None
    edges = np.flatnonzero(np.diff(np.concatenate([[False], zero, [False]]).astype(np.int8)))
    lengths = edges[1::2] - edges[::2]
    share = float(zero[prompt].mean())
    if np.median(lengths) < _SHORTEST or not _LEAST_LOST <= share <= 1 - _LEAST_LOST:
        return None
    because = [
        f"right and zero rows take turns in {of_all(len(both), len(touched), 'affected request')}: "
        f"{percent(share)} of the prompt rows are zero, in runs of {int(np.median(lengths))} (median)",
        "where a step's rows are spread over tensor-parallel ranks, each step loses those of the other "
        "ranks, a tail behind right rows",
    ]
    return diagnosis("tp-shard", 0.85 if facts.tp_size is not None else 0.5, because, trace)
