"""Requests, rows and tokens that the two traces do not share."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.align import NEVER, Alignment
from moeinspect.analysis.compare.wording import region_of
from moeinspect.analysis.findings import Finding
from moeinspect.analysis.requests import is_imported, not_opted_in, request_evidence, sampled_nothing
from moeinspect.analysis.rules.grouping import rows_text
from moeinspect.trace.schema import FinishReason, Trace, Validity


def one_sided_findings(alignment: Alignment, token_ties: Collection[int] = ()) -> Iterator[Finding]:
    """`only-in-a`, `only-in-b` and `token-mismatch`, and how requests were paired if not by id.

    Outputs of the pairs in `token_ties` part by rounding: their `token-mismatch` is a note.
    """
    a, b = alignment.a, alignment.b
    if alignment.pairing.by_prompt:
        yield Finding(
            rule="paired-by-prompt",
            severity="note",
            message="no request id is common: requests were paired by equal prompt ids",
            count=len(alignment.pairing.pairs),
        )
    for number, (request_a, request_b) in enumerate(alignment.pairing.pairs):
        rows = alignment.pair_rows[number]
        if rows.cut:
            yield _cut_prompt(alignment, number)
        if rows.first_difference != NEVER:
            yield _token_mismatch(alignment, number, tie=number in token_ties)
        yield from _row_runs(a, request_a, b, request_b, rows.only_a, "only-in-a")
        yield from _row_runs(b, request_b, a, request_a, rows.only_b + rows.cut, "only-in-b")
    for request in alignment.pairing.only_a:
        yield _whole_request(a, request, "only-in-a")
    for request in alignment.pairing.only_b:
        yield _whole_request(b, request, "only-in-b")


def _cut_prompt(alignment: Alignment, number: int) -> Finding:
    """The rows of the tokens that one prompt lacks are not compared; all others are, at their tokens."""
    request, cut = alignment.pairing.pairs[number][0], alignment.pair_rows[number].cut
    shorter, longer = ("A", "B") if cut > 0 else ("B", "A")
    return Finding(
        rule="cut-prompt",
        severity="note",
        message=(
            f"{shorter}'s prompt is {longer}'s without its first {abs(cut)} tokens: rows are compared at the "
            "tokens that both have"
        ),
        count=abs(cut),
        request=alignment.request_id(number),
        region="prompt",
        evidence={"lacks": shorter.lower(), "tokens": abs(cut)} | request_evidence(alignment.a, request),
    )


def _token_mismatch(alignment: Alignment, number: int, *, tie: bool) -> Finding:
    request_a, request_b = alignment.pairing.pairs[number]
    rows = alignment.pair_rows[number]
    position = rows.first_difference
    token_a = int(alignment.a.tokens_of(request_a)[position])
    token_b = int(alignment.b.tokens_of(request_b)[position + rows.cut])
    first = max(0, position - int(alignment.a.requests.start_pos[request_a]))
    last = int(alignment.a.requests.num_rows[request_a])
    prompt_len = int(alignment.a.requests.prompt_len[request_a])
    return Finding(
        rule="token-mismatch",
        severity="note" if tie else "error",
        message=(
            f"the token at position {position} is {token_a} in A and {token_b} in B: "
            + _lost(rows.not_comparable)
            + (" (rounding turns tokens over this often)" if tie else "")
        ),
        count=rows.not_comparable,
        request=alignment.request_id(number),
        rows=(first, last) if last > first else None,
        region="prompt" if position < prompt_len else "output",
        evidence={"position": position, "token_a": token_a, "token_b": token_b}
        | request_evidence(alignment.a, request_a),
    )


def _lost(num_rows: int) -> str:
    if not num_rows:
        return "it was never fed, so all rows are compared"
    return f"{num_rows} rows from there on are not comparable"


def _row_runs(
    own: Trace, request: int, other: Trace, partner: int, positions: NDArray[np.int64], rule: str
) -> Iterator[Finding]:
    """One finding per run of consecutive positions that only `own` has as real rows."""
    if not len(positions):
        return
    here, there = _names(rule)
    start_pos = int(own.requests.start_pos[request])
    prompt_len = int(own.requests.prompt_len[request])
    excuse = _excuse(other, partner, positions)
    for run in np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1):
        first, last = int(run[0]), int(run[-1]) + 1
        rows = (first - start_pos, last - start_pos)
        region = region_of(first, last, prompt_len)
        yield Finding(
            rule=rule,
            severity="note" if excuse else "error",
            message=f"{rows_text(rows)} ({region}): only {here} has real rows here, {there} has none{excuse}",
            count=last - first,
            request=str(own.requests.id[request]),
            rows=rows,
            region=region,
            evidence={"positions": [first, last]} | request_evidence(own, request),
        )


def _excuse(other: Trace, partner: int, positions: NDArray[np.int64]) -> str:
    """Why the other trace may lack these rows, or nothing: it never promised them."""
    requests = other.requests
    if requests.finish_reason[partner] == FinishReason.ABORT:
        return " (aborted)"
    rows = other.row_range(partner)
    if not_opted_in(other)[partner] and (other.rows.validity[rows] == Validity.MISSING).all():
        return " (it did not ask for routed experts)"
    last_prompt = int(requests.prompt_len[partner]) - 1
    if sampled_nothing(requests)[partner] and is_imported(other) and positions.tolist() == [last_prompt]:
        return " (no token was sampled there)"
    return ""


def _whole_request(own: Trace, request: int, rule: str) -> Finding:
    here, there = _names(rule)
    rows = own.row_range(request)
    count = rows.stop - rows.start
    start_pos = int(own.requests.start_pos[request])
    return Finding(
        rule=rule,
        severity="error",
        message=f"the whole request ({count} rows) is only in {here}: {there} has no request to pair it with",
        count=count,
        request=str(own.requests.id[request]),
        rows=(0, count),
        region=region_of(start_pos, start_pos + count, int(own.requests.prompt_len[request])),
        evidence={"whole_request": True} | request_evidence(own, request),
    )


def _names(rule: str) -> tuple[str, str]:
    return ("A", "B") if rule == "only-in-a" else ("B", "A")
