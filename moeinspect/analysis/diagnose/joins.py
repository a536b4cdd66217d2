"""Answers of turns that were joined: `double-concat`, and `turn-gap` where rows were left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.cells import gather, set_keys
from moeinspect.analysis.diagnose.facts import run_facts
from moeinspect.analysis.diagnose.fillers import filler_reason, is_numbering
from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.provenance import requests_of_findings
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import counted, of_all
from moeinspect.analysis.findings import Diagnosis, Finding
from moeinspect.analysis.requests import fed_rows
from moeinspect.trace.schema import Trace

_MOST = 0.8
_ALIKE = 0.5
"""Share of equal cells from which on rows are taken for the same: rounding turns over fewer."""
_PROBED = 8
"""Last rows that tell which ones stand there."""
_CANDIDATES = 32
"""Places of a seam that are looked at: in a loop many look alike."""
_FEWEST_ROWS = 6
_LOOK = 2
"""Rows that are compared where a join may be: a first answer may be that short."""

_FEWEST_CUT = 3
"""Requests with a surplus that have to have prompts of one length; fewer may be of one by chance."""


def diagnose_surplus(trace: Trace, findings: tuple[Finding, ...]) -> Diagnosis:
    """More rows than fed tokens: padding, answers that each begin at row 0, or rows past a stop."""
    because = [f"{counted(len(findings), 'request')} with more rows than tokens that were fed"]
    wanted = fed_rows(trace.requests)
    beyond = np.zeros(len(trace.rows), dtype=bool)
    numbers = requests_of_findings(trace, findings).tolist()
    twice = 0
    for number in numbers:
        own, want = trace.row_range(number), int(wanted[number])
        beyond[own.start + want : own.stop] = True
        twice += _begins_again(trace.rows.expert_ids[own], own.stop - own.start - want)
    filler = filler_reason(trace, beyond)
    if filler and (twice < _MOST * len(numbers) or is_numbering(trace, beyond)):
        because.append(f"the rows beyond hold what was never routed: {filler}")
        return diagnosis("filler-as-real", 0.9, because, trace)
    if twice >= _MOST * len(numbers):
        because.append(
            f"in {of_all(twice, len(numbers), 'such request')} the last rows, as many as tokens were fed, "
            "begin like the first ones: an answer for all tokens was appended to the rows that were there"
        )
        return diagnosis("double-concat", 0.95, because, trace)
    if run_facts(trace).draft:
        because.append("a draft was configured: rows past the stop of an accepted run were kept")
        return diagnosis("surplus-after-stop", 0.8, because, trace)
    if not _only_longest(trace, numbers):
        return diagnosis("double-concat|surplus-after-stop", 0.5, because, trace)
    because.append("they have the longest prompts, and shorter ones have no surplus")
    if len(numbers) < _FEWEST_CUT:
        return diagnosis("double-concat|prompt-truncated|surplus-after-stop", 0.5, because, trace)
    because.append("all of these prompts are of one length, as if cut to it, and their rows were not")
    return diagnosis("prompt-truncated", 0.85, because, trace)


def _only_longest(trace: Trace, numbers: list[int]) -> bool:
    """Whether all these requests have prompts of one length, and all others shorter ones."""
    marked = np.isin(np.arange(len(trace.requests)), numbers)
    lengths = trace.requests.prompt_len
    if not marked.any() or marked.all():
        return False
    return bool((lengths[marked] == lengths.max()).all() and (lengths[~marked] < lengths.max()).all())


def diagnose_joined(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`double-concat` cut to the tokens: from some row on a request holds its own first rows again."""
    touched, seams = _seams(mismatch)
    lengths = list(seams.values())
    if not seams or len(seams) < _MOST * touched or (len(set(lengths)) == 1 and len(lengths) > 1):
        return None  # one length for all requests is a shift of rows
    because = [
        f"in {of_all(len(seams), touched, 'affected request')} the first rows stand twice: after "
        f"{min(lengths)} to {max(lengths)} right rows the beginning comes again, up to the number of tokens",
    ]
    return diagnosis("double-concat", 0.93, because, mismatch.a)


def joined_rows(mismatch: Mismatch, sources: Sources) -> NDArray[np.bool_]:
    """Rows [R, 1] behind the seams, if they are more than a few."""
    alignment = mismatch.alignment
    rows = np.zeros(len(alignment), dtype=bool)
    for pair, length in _seams(mismatch)[1].items():
        own = alignment.rows_of_pair(pair)
        rows[own.start + length : own.stop] = True
    enough = (rows & mismatch.rows_wrong_in(_ALIKE)).sum() >= _FEWEST_ROWS
    return rows[:, None] if enough else np.zeros_like(rows)[:, None]


def _seams(mismatch: Mismatch) -> tuple[int, dict[int, int]]:
    """Requests with wrong rows at their end, and behind how many rows which of them begin again."""
    alignment, bad = mismatch.alignment, mismatch.rows_wrong_in(_ALIKE)
    touched, seams = 0, {}
    for pair in np.unique(alignment.pair[bad]).tolist():
        own = alignment.rows_of_pair(pair)
        if own.stop - own.start - int(bad[own].argmax()) < _LOOK:
            continue  # one row may be equal to the first one by chance
        touched += 1
        # Rounding gets rows wrong anywhere; those behind a seam are, nearly all of them.
        if bad[max(own.start, own.stop - _PROBED) : own.stop].mean() >= _ALIKE:
            length = _seam(mismatch, own, bad[own])
            if length:
                seams[pair] = length
    return touched, seams


def _seam(mismatch: Mismatch, own: slice, bad: NDArray[np.bool_]) -> int:
    """From which row of a request on its first rows stand again; 0: from none."""
    rows = np.arange(own.start, own.stop)
    ours, right = (set_keys(mismatch.ids(side, rows)) for side in "ab")
    n = len(rows)
    probes = np.arange(max(_LOOK, n - _PROBED), n)
    lengths = np.arange(_LOOK, n - 1)
    there = probes - lengths[:, None]
    alike = np.zeros(len(lengths))
    for probe, source in zip(probes.tolist(), there.T, strict=True):
        alike += np.where(source >= 0, (ours[probe] == right[source]).mean(axis=1), 0)
    asked = np.maximum(1, (there >= 0).sum(axis=1))
    likely = lengths[alike >= _MOST * asked]
    for length in likely[np.argsort(-likely)][:_CANDIDATES].tolist():
        behind = ours[length:]
        begins = (ours[:length] == right[:length]).mean() >= _MOST
        if begins and bad[length:].sum() >= _LOOK and (behind == right[: len(behind)]).mean() >= _MOST:
            return int(length)
    return 0


@dataclass(frozen=True, slots=True)
class _Ends:
    """Shares of equal cells of A's first and last rows with B's."""

    first: float
    last: float


def diagnose_left_out(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`turn-gap` with fewer rows: a request begins and ends like the baseline's."""
    numbers = {int(n) for n in requests_of_findings(mismatch.a, mismatch.found("missing-rows"))}
    partners = dict(mismatch.alignment.pairing.pairs)
    ends = [_ends(mismatch, a, partners[a]) for a in sorted(numbers) if a in partners]
    inner = [end for end in ends if end is not None and min(end.first, end.last) >= _ALIKE]
    if not inner or len(inner) < _MOST * len(ends):
        return None
    because = [
        f"{of_all(len(inner), len(ends), 'request')} with fewer rows than tokens begin and end with the "
        "right rows: rows are missing in between, and those behind the gap stand too early",
    ]
    return diagnosis("turn-gap", 0.93, because, mismatch.a)


def _ends(mismatch: Mismatch, a: int, b: int) -> _Ends | None:
    alignment = mismatch.alignment
    own, right = alignment.a.row_range(a), alignment.b.row_range(b)
    length, full = own.stop - own.start, right.stop - right.start
    if not _LOOK <= length < full or alignment.a.requests.start_pos[a] != alignment.b.requests.start_pos[b]:
        return None
    look = np.arange(min(_LOOK, length))

    def alike(a_row: int, b_row: int) -> float:
        ours = gather(alignment.a.rows.expert_ids, a_row + look, alignment.a_axis)
        theirs = gather(alignment.b.rows.expert_ids, b_row + look, alignment.b_axis)
        return float((ours == theirs).mean())

    return _Ends(alike(own.start, right.start), alike(own.stop - len(look), right.stop - len(look)))


def _begins_again(rows: NDArray[np.integer], at: int) -> bool:
    """Whether the rows from `at` on begin like the first ones."""
    look = min(_LOOK, at, len(rows) - at)
    return look > 0 and bool((rows[at : at + look] == rows[:look]).mean() >= _ALIKE)
