"""Rows without routing in the midst of a request: `turn-gap`, or filler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.facts import knows_workers
from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.words import counted, of_all
from moeinspect.analysis.findings import Diagnosis, Finding
from moeinspect.trace.schema import Trace, Validity

_NEARLY_ALL = 0.9
_SELDOM = 0.2
_FEW = 8
"""Rows that the last steps of a request may have, those of a draft included."""
_IN_FLIGHT = 4
"""Steps whose results may be under way when a request ends."""


@dataclass(frozen=True, slots=True)
class MarkedRuns:
    """Runs of marked rows, one entry each: its request, first row and end in it, and the rows that it has."""

    request: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    size: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.request)

    def chosen(self, which: NDArray[np.bool_]) -> MarkedRuns:
        """Some of the runs."""
        return MarkedRuns(*(column[which] for column in (self.request, self.first, self.last, self.size)))

    @property
    def length(self) -> NDArray[np.int64]:
        """Rows of each run."""
        return self.last - self.first

    @property
    def is_inner(self) -> NDArray[np.bool_]:
        """Other rows of the request stand before and behind."""
        return np.asarray((self.first > 0) & (self.last < self.size))

    @property
    def is_whole(self) -> NDArray[np.bool_]:
        """The run is all of its request."""
        return np.asarray(self.length == self.size)

    @property
    def is_head(self) -> NDArray[np.bool_]:
        """The run begins with the request, and other rows follow."""
        return np.asarray((self.first == 0) & (self.last < self.size))

    @property
    def is_tail(self) -> NDArray[np.bool_]:
        """The run ends with the request, and other rows stand before."""
        return np.asarray((self.first > 0) & (self.last == self.size))


def marked_runs(trace: Trace, marked: NDArray[np.bool_]) -> MarkedRuns:
    """The runs of `marked` rows [R], request after request."""
    found: list[tuple[int, int, int, int]] = []
    for request in np.flatnonzero(trace.requests.num_rows).tolist():
        own = trace.row_range(request)
        if not marked[own].any():
            continue
        edges = np.diff(np.concatenate([[0], marked[own].astype(np.int8), [0]]))
        firsts, lasts = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        size = own.stop - own.start
        found += [(request, a, b, size) for a, b in zip(firsts.tolist(), lasts.tolist(), strict=True)]
    table = np.asarray(found, dtype=np.int64).reshape(len(found), 4)
    return MarkedRuns(*(table[:, column] for column in range(4)))


def diagnose_declared(mismatch: Mismatch) -> Iterator[Diagnosis]:
    """Rows that the baseline has and A declares missing, in the midst of A's requests."""
    if not mismatch.found("only-in-b"):
        return
    missing = mismatch.a.rows.validity == Validity.MISSING
    runs = marked_runs(mismatch.a, missing)
    if (found := diagnose_gaps(mismatch.a, runs.chosen(~runs.is_whole), "rows that are missing")) is not None:
        yield found


def diagnose_absent(mismatch: Mismatch) -> Iterator[Diagnosis]:
    """Requests of the baseline that A does not even name, where all that A has is in the baseline."""

    def whole(rule: str) -> list[Finding]:
        return [f for f in mismatch.found(rule) if f.evidence.get("whole_request")]

    absent, total = whole("only-in-b"), len(mismatch.comparison.b.requests)
    if not absent or whole("only-in-a"):
        return
    because = [
        f"{of_all(len(absent), total, 'request')} of the baseline are not in A at all, neither their tokens "
        f"nor their {counted(sum(f.count for f in absent), 'row')}",
        "no cause by name is in what both traces have: answers were lost as a whole, or their payload was "
        "absent and they were left out",
    ]
    yield diagnosis("missing-request", 0.7, because, mismatch.a)


def one_gap_each(trace: Trace, zero: NDArray[np.bool_]) -> bool:
    """Whether each touched request has one gap of zero rows [R] that hardly ever ends with the prompt.

    Without steps that is no shard of them: those lose the ends of prompts, and in long ones several runs.
    """
    runs = marked_runs(trace, zero)
    if knows_workers(trace) or not runs.is_inner.all() or len(np.unique(runs.request)) < len(runs):
        return False
    prompt = (trace.requests.prompt_len - trace.requests.start_pos)[runs.request]
    return bool(len(runs) and (runs.last == prompt).mean() <= _SELDOM)


def diagnose_made(trace: Trace, zero: NDArray[np.bool_]) -> Diagnosis | None:
    """Causes of zero rows [R] that a trainer made, by where they stand; None: the engine may have left them.

    An engine that reads too early loses the rows of the last steps of a request, not dozens of them.
    """
    runs = marked_runs(trace, zero)
    if (gaps := diagnose_gaps(trace, runs, "zero rows")) is not None:
        return gaps
    because = [f"{counted(len(runs), 'run')} of zero rows, {int(runs.length.max())} at most"]
    if runs.is_whole.mean() >= _NEARLY_ALL and runs.length.mean() >= _FEW:
        because.append(
            "they fill whole requests, and other requests are right: what stands for a missing answer"
        )
        return diagnosis("filler-as-real", 0.7, because, trace)
    if runs.is_head.mean() >= _NEARLY_ALL:
        because.append("they begin with the request, and right rows follow before the prompt ends")
        if knows_workers(trace):
            return diagnosis("filler-as-real", 0.7, because, trace)
        because.append("KV of a cached prefix that was moved without its rows leaves the same")
        return diagnosis("filler-as-real|stale-slot", 0.6, because, trace)
    if runs.is_tail.mean() >= _NEARLY_ALL:
        return _made_tails(trace, runs, because)
    return None


def _made_tails(trace: Trace, runs: MarkedRuns, because: list[str]) -> Diagnosis | None:
    """Zero tails: filler if they go back over more steps than can be in flight when a request ends."""
    if knows_workers(trace):
        steps = [
            len(np.unique(trace.rows.step[trace.row_range(int(request))][first:last]))
            for request, first, last in zip(runs.request, runs.first, runs.last, strict=True)
        ]
        if np.median(steps) <= _IN_FLIGHT:
            return None
        because.append(f"they end requests and go back over {int(np.median(steps))} steps, as padding does")
        return diagnosis("filler-as-real", 0.85, because, trace)
    because.append("they end requests, as padding does")
    if np.median(runs.length) > _FEW:
        because.append("more of them than the last steps of a request have")
        return diagnosis("filler-as-real", 0.7, because, trace)
    return diagnosis("filler-as-real|read-early", 0.6, because, trace)


def diagnose_gaps(trace: Trace, runs: MarkedRuns, what: str) -> Diagnosis | None:
    """Cause of runs in the midst of requests; `what` says what these rows are. None: they stand elsewhere."""
    if not len(runs) or runs.is_inner.mean() < _NEARLY_ALL:
        return None
    single = runs.length == 1
    because = [
        f"{counted(len(runs), 'gap')} of {what} in the midst of requests, right rows before and behind"
    ]
    if single.mean() >= _NEARLY_ALL and len(runs) > 1:
        because.append(
            "one row each: the last token of a turn has no row in that turn's answer, and the next turn's "
            "answer brings it"
        )
        return diagnosis("turn-gap", 0.85, because, trace)
    because.append("a turn that was not captured, or what stands for the tokens of a tool")
    return diagnosis("filler-as-real|turn-gap", 0.6, because, trace)
