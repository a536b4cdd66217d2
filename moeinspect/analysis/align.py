"""Which rows and layers of two traces stand for the same thing.

Requests are paired by (id, sample), rows by absolute position, layers by absolute index. Nothing is cut to
the shorter side: what only one trace has is told.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.cells import set_keys
from moeinspect.analysis.exempt import exempt_in_either, real_rows, uncaptured_layers
from moeinspect.errors import InputError
from moeinspect.trace.schema import Trace

_TOLD_BY = 2
"""Layers that tell whether two requests hold rows of one run."""

_OF_ONE_RUN = 0.5
"""Share of rows that have to stand in the other request, too: noise changes some of them."""

NEVER = np.iinfo(np.int64).max
"""First token difference of a pair whose tokens agree as far as both go."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """Request numbers that belong together, in A's order, and those without a partner."""

    pairs: tuple[tuple[int, int], ...]
    only_a: tuple[int, ...]
    only_b: tuple[int, ...]
    by_prompt: bool
    """No (id, sample) was common, so requests were paired by their prompt ids."""


@dataclass(frozen=True, slots=True)
class PairRows:
    """What one pair of requests has to compare.

    Positions are absolute (0 is the first prompt token). `only_a` and `only_b` [n] hold positions of real
    rows that the other side lacks.
    """

    comparable: NDArray[np.int64]
    only_a: NDArray[np.int64]
    only_b: NDArray[np.int64]
    first_difference: int
    """Position of the first token that differs, or `NEVER`."""
    not_comparable: int
    """Positions with a row on either side at or after the first token difference."""
    not_real: int
    """Positions before it with a row that its own trace declares missing, filler or invalid."""
    cut: int = 0
    """Tokens that A's prompt lacks at its start, against B's; negative: that B's lacks. Positions are A's."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """The common ground of two traces.

    Arrays over R comparable rows, pair after pair in position order: `pair` and `position` [R], `a_row` and
    `b_row` [R] index the row axes of the traces. Pair p owns `pair_start[p]:pair_start[p + 1]`. `layers`
    [L] are the absolute MoE layers of both, `a_axis` and `b_axis` [L] their places on axis 1 of the ids.
    """

    a: Trace
    b: Trace
    pairing: Pairing
    pair_rows: tuple[PairRows, ...]
    pair: NDArray[np.int32]
    position: NDArray[np.int64]
    a_row: NDArray[np.int64]
    b_row: NDArray[np.int64]
    pair_start: NDArray[np.int64]
    layers: NDArray[np.int64]
    a_axis: NDArray[np.int64]
    b_axis: NDArray[np.int64]
    uncaptured_a: tuple[int, ...] = ()
    uncaptured_b: tuple[int, ...] = ()
    """Common MoE layers that A (B) did not capture and that are exempt in either: not among `layers`."""

    def __len__(self) -> int:
        return len(self.position)

    @property
    def is_prompt(self) -> NDArray[np.bool_]:
        """Whether each row [R] belongs to the prompt, as trace A counts it."""
        return self.position < self.a.requests.prompt_len[self.a_request]

    @property
    def a_request(self) -> NDArray[np.int64]:
        """Request number in A of each row [R]."""
        return np.asarray([a for a, _ in self.pairing.pairs], dtype=np.int64)[self.pair]

    def rows_of_pair(self, pair: int) -> slice:
        """Where the rows of one pair stand among the R rows."""
        return slice(int(self.pair_start[pair]), int(self.pair_start[pair + 1]))

    def request_id(self, pair: int) -> str:
        """The id under which a pair is reported: A's."""
        return str(self.a.requests.id[self.pairing.pairs[pair][0]])


def align(a: Trace, b: Trace) -> Alignment:
    """Pairs requests, rows and layers of two traces.

    Raises:
        InputError: there is nothing to compare: no common request, row or MoE layer.
    """
    common = np.intersect1d(a.model.moe_layers, b.model.moe_layers).astype(np.int64)
    if not len(common):
        raise InputError(
            f"nothing to compare: {a.path} and {b.path} have no MoE layer in common",
            "compare traces of one model",
        )
    exempt = np.intersect1d(common, exempt_in_either(a.model, b.model))
    real = [real_rows(trace, exempt) for trace in (a, b)]
    uncaptured = [uncaptured_layers(trace, exempt, rows) for trace, rows in zip((a, b), real, strict=True)]
    layers = np.setdiff1d(common, np.concatenate(uncaptured))
    if not len(layers):
        raise InputError(
            f"nothing to compare: all MoE layers that {a.path} and {b.path} have in common are exempt from "
            "capture and were not captured",
            "compare traces that hold a layer which is captured",
        )
    pairing = pair_requests(a, b)
    axes = axis_of(a, layers), axis_of(b, layers)
    cuts = [_cut_between(a, b, *pair, *axes) for pair in pairing.pairs]
    pair_rows = tuple(
        _rows_of(a, b, x, y, real[0], real[1], cut) for (x, y), cut in zip(pairing.pairs, cuts, strict=True)
    )
    lengths = np.asarray([len(rows.comparable) for rows in pair_rows], dtype=np.int64)
    if not lengths.sum():
        raise InputError(_why_no_rows(a, b, pair_rows), "compare runs of the same prompts")
    position = np.concatenate([rows.comparable for rows in pair_rows])
    pair = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    return Alignment(
        a=a,
        b=b,
        pairing=pairing,
        pair_rows=pair_rows,
        pair=pair,
        position=position,
        a_row=_first_row(a, [x for x, _ in pairing.pairs])[pair] + position,
        b_row=(_first_row(b, [y for _, y in pairing.pairs]) + np.asarray(cuts, dtype=np.int64))[pair]
        + position,
        pair_start=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        layers=layers,
        a_axis=axes[0],
        b_axis=axes[1],
        uncaptured_a=tuple(uncaptured[0].tolist()),
        uncaptured_b=tuple(uncaptured[1].tolist()),
    )


def pair_requests(a: Trace, b: Trace) -> Pairing:
    """Pairs requests by (id, sample), or by equal prompt ids if not one such key is common.

    A key that a trace holds several times is paired in file order.

    Raises:
        InputError: no request of A has a partner in B.
    """
    pairs = _match(_keys_by_id(a), _keys_by_id(b))
    by_prompt = not pairs
    if by_prompt:
        pairs = _match_by_prompt(a, b)
    if not pairs:
        raise InputError(
            f"nothing to compare: no request of {a.path} ({_sample_ids(a)}) is in {b.path} "
            f"({_sample_ids(b)}), neither by id nor by prompt",
            "compare runs of the same prompts",
        )
    paired_a = {x for x, _ in pairs}
    paired_b = {y for _, y in pairs}
    return Pairing(
        pairs=tuple(sorted(pairs)),
        only_a=tuple(i for i in range(len(a.requests)) if i not in paired_a),
        only_b=tuple(i for i in range(len(b.requests)) if i not in paired_b),
        by_prompt=by_prompt,
    )


def axis_of(trace: Trace, layers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places on axis 1 of the ids of these absolute layers [L], which the trace must hold."""
    axis = trace.axis_layers()
    order = np.argsort(axis, kind="stable")
    return order[np.searchsorted(axis, layers, sorter=order)].astype(np.int64)


def _keys_by_id(trace: Trace) -> Iterator[tuple[object, int]]:
    for i in range(len(trace.requests)):
        yield (str(trace.requests.id[i]), int(trace.requests.sample[i])), i


def _match(
    keys_a: Iterator[tuple[object, int]], keys_b: Iterator[tuple[object, int]]
) -> list[tuple[int, int]]:
    waiting: dict[object, deque[int]] = defaultdict(deque)
    for key, i in keys_b:
        waiting[key].append(i)
    return [(i, waiting[key].popleft()) for key, i in keys_a if waiting.get(key)]


def _match_by_prompt(a: Trace, b: Trace) -> list[tuple[int, int]]:
    """Equal tokens first, so that samples of one prompt find their like; then equal prompts."""
    whole = _match(_keys_by_tokens(a, range(len(a.requests))), _keys_by_tokens(b, range(len(b.requests))))
    left_a = set(range(len(a.requests))) - {x for x, _ in whole}
    left_b = set(range(len(b.requests))) - {y for _, y in whole}
    prompts_a = _keys_by_tokens(a, sorted(left_a), prompt_only=True)
    return whole + _match(prompts_a, _keys_by_tokens(b, sorted(left_b), prompt_only=True))


def _keys_by_tokens(
    trace: Trace, requests: Sequence[int], *, prompt_only: bool = False
) -> Iterator[tuple[object, int]]:
    for i in requests:
        prompt_len = int(trace.requests.prompt_len[i])
        tokens = trace.tokens_of(i).astype(np.int64)
        if prompt_len:
            yield (prompt_len, (tokens[:prompt_len] if prompt_only else tokens).tobytes()), i


def _first_row(trace: Trace, requests: Sequence[int]) -> NDArray[np.int64]:
    """Row index that position 0 of each request has, or would have."""
    index = np.asarray(requests, dtype=np.int64)
    return trace.requests.row_start[index].astype(np.int64) - trace.requests.start_pos[index]


def _rows_of(
    a: Trace,
    b: Trace,
    request_a: int,
    request_b: int,
    real_rows_a: NDArray[np.bool_],
    real_rows_b: NDArray[np.bool_],
    cut: int,
) -> PairRows:
    """`cut` as `PairRows` has it: rows of tokens that one prompt lacks are left out."""
    tokens_a, tokens_b = a.tokens_of(request_a), b.tokens_of(request_b)
    lost = max(0, -cut)
    shorter = min(len(tokens_a), len(tokens_b) - cut)
    differs = np.flatnonzero(tokens_a[lost:shorter] != tokens_b[lost + cut : shorter + cut])
    first = lost + int(differs[0]) if len(differs) else NEVER
    low = min(int(a.requests.start_pos[request_a]), int(b.requests.start_pos[request_b]) - cut)
    if cut:
        low = max(low, lost)
    high = max(low, _end_of(a, request_a), _end_of(b, request_b) - cut)
    here_a, real_a = _presence(a, request_a, low, high, real_rows_a)
    here_b, real_b = _presence(b, request_b, low + cut, high + cut, real_rows_b)
    positions = np.arange(low, high, dtype=np.int64)
    before = positions < first
    # A row past the shorter token list has no token to be judged by; one-sided ones are told as such.
    before &= (positions < shorter) | ~(here_a & here_b)
    return PairRows(
        comparable=positions[before & real_a & real_b],
        only_a=positions[before & real_a & ~real_b],
        only_b=positions[before & real_b & ~real_a],
        first_difference=first,
        not_comparable=int(((here_a | here_b) & ~before).sum()),
        not_real=int((((here_a & ~real_a) | (here_b & ~real_b)) & before).sum()),
        cut=cut,
    )


def _cut_between(
    a: Trace, b: Trace, request_a: int, request_b: int, axis_a: NDArray[np.int64], axis_b: NDArray[np.int64]
) -> int:
    """How many tokens A's prompt lacks at its start against B's (negative: B's against A's); 0 if it is not
    the end of that prompt, or if its rows are not those of that run."""
    prompts = []
    for trace, request in ((a, request_a), (b, request_b)):
        prompts.append(trace.tokens_of(request)[: int(trace.requests.prompt_len[request])])
    shorter, longer = sorted(prompts, key=len)
    cut = len(prompts[1]) - len(prompts[0])
    if not cut or not len(shorter) or (longer[: len(shorter)] == shorter).all():
        return 0
    if (longer[abs(cut) :] != shorter).any() or not _share_rows(a, b, request_a, request_b, axis_a, axis_b):
        return 0
    return cut


def _share_rows(
    a: Trace, b: Trace, request_a: int, request_b: int, axis_a: NDArray[np.int64], axis_b: NDArray[np.int64]
) -> bool:
    """Whether most cells of A's request stand in B's, in a layer that tells tokens apart best, the last."""
    keys = []
    for trace, request, axis in ((a, request_a, axis_a), (b, request_b, axis_b)):
        rows = trace.rows.expert_ids[trace.row_range(request)]
        keys.append(set_keys(rows[:, axis[-_TOLD_BY:]]).sum(axis=1, dtype=np.uint64))
    return len(keys[0]) > 0 and bool(np.isin(keys[0], keys[1]).mean() >= _OF_ONE_RUN)


def _end_of(trace: Trace, request: int) -> int:
    return int(trace.requests.start_pos[request]) + int(trace.requests.num_rows[request])


def _presence(
    trace: Trace, request: int, low: int, high: int, real_rows: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """For positions [low, high): whether there is a row, and whether it claims to be real."""
    here, real = np.zeros(high - low, dtype=bool), np.zeros(high - low, dtype=bool)
    rows, start = trace.row_range(request), int(trace.requests.start_pos[request]) - low
    before = min(max(0, -start), rows.stop - rows.start)
    own = slice(start + before, start + rows.stop - rows.start)
    here[own] = True
    real[own] = real_rows[rows.start + before : rows.stop]
    return here, real


def _sample_ids(trace: Trace) -> str:
    ids = [repr(str(name)) for name in trace.requests.id[:3]]
    more = len(trace.requests) - len(ids)
    return ", ".join(ids) + (f" and {more} more" if more > 0 else "") or "no requests"


def _why_no_rows(a: Trace, b: Trace, pair_rows: Sequence[PairRows]) -> str:
    start = f"nothing to compare between {a.path} and {b.path}"
    if all(rows.first_difference == 0 for rows in pair_rows):
        return f"{start}: the tokens of all {len(pair_rows)} paired requests differ from the first one on"
    return f"{start}: {len(pair_rows)} requests are paired, but no row of theirs is real on both sides"
