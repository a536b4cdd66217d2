"""How the rows of each request were moved: by one lag, in pieces, in stripes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.mismatch import Mismatch

_ONE_LAG = 0.9
"""Share of a request's moved rows that have to have its main lag."""

_BOTH_WAYS = 0.1
"""Smallest share of moved rows that came from either side where pieces changed places."""

_ONCE = 0.9
"""Share of the rows that have to be distinct where pieces changed places."""

_STRIPED = 0.7
"""Share of steps between rows that have to be those of a stripe."""

_MONOTONE = 0.98
"""Share of the rows from which on a lag does not fall back."""

MOST_RANKS = 64
_FEWEST = 3
"""Moved rows of a request that tell how they were moved."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pattern:
    """The moved rows of one request; places count the rows of B's request."""

    pair: int
    num_rows: int
    """Compared rows."""
    place: Numbers
    """Where the moved rows stand [n]."""
    lag: Numbers
    """How many rows later each one's own place is [n]."""
    in_pieces: str
    """How it was cut, in words; empty: it was not, or not in a way that tells."""
    begins_again: bool
    """Behind right rows stands the request's first row once more."""

    @property
    def main_lag(self) -> int:
        """The lag of most moved rows."""
        lags, counts = np.unique(self.lag, return_counts=True)
        return int(lags[counts.argmax()])

    @property
    def is_constant(self) -> bool:
        """One lag for nearly all of them."""
        return bool((self.lag == self.main_lag).mean() >= _ONE_LAG)

    @property
    def first(self) -> int:
        """Place of the first row with the main lag."""
        return int(self.place[self.lag == self.main_lag][0])


def patterns_of(mismatch: Mismatch) -> list[Pattern]:
    """One per request with at least a few moved rows."""
    alignment, moved = mismatch.alignment, mismatch.moved
    counts = np.bincount(alignment.pair[moved.in_request], minlength=len(alignment.pairing.pairs))
    patterns = [_pattern(mismatch, pair) for pair in np.flatnonzero(counts >= _FEWEST).tolist()]
    return [one for one in patterns if len(one.lag) >= _FEWEST]


def _pattern(mismatch: Mismatch, pair: int) -> Pattern:
    alignment, moved = mismatch.alignment, mismatch.moved
    own = alignment.rows_of_pair(pair)
    start = alignment.b.row_range(alignment.pairing.pairs[pair][1]).start
    in_place = ~moved.misplaced[own] & (moved.source[own] >= 0)
    known = moved.in_request[own] | in_place
    place, source = alignment.b_row[own][known] - start, moved.source[own][known] - start
    is_moved = moved.in_request[own][known]
    kept = ~_is_fill(place, source)
    place, source, is_moved = place[kept], source[kept], is_moved[kept]
    rows_b = alignment.b.row_range(alignment.pairing.pairs[pair][1])
    restarts = _restarts(place, source)
    return Pattern(
        pair=pair,
        num_rows=own.stop - own.start,
        place=place[is_moved],
        lag=(source - place)[is_moved],
        in_pieces=_in_pieces(place, source, is_moved, rows_b.stop - rows_b.start),
        begins_again=len(restarts) > 0,
    )


def _is_fill(place: Numbers, source: Numbers) -> NDArray[np.bool_]:
    """Rows that hold the same row as their neighbour: an end that was filled with a copy."""
    same = (np.diff(place) == 1) & (np.diff(source) == 0)
    fill = np.zeros(len(place), dtype=bool)
    fill[1:] |= same
    fill[:-1] |= same
    return fill


def _restarts(place: Numbers, source: Numbers) -> Numbers:
    """Places [n] behind others at which the request's first row stands, and its second one behind it."""
    follows = np.zeros(len(place), dtype=bool)
    if len(place) > 1:
        follows[1:-1] = (source[1:-1] == 0) & (source[2:] == 1)
    return place[follows]


def _at_slices(restarts: Numbers, num_rows: int) -> bool:
    """Whether a request begins again where slices of one length do: a joined answer does so anywhere."""
    size = int(restarts[0])
    if num_rows < 2.5 * size:
        return size == 2 * -(-num_rows // 4)
    return len(restarts) > 1 and not (restarts % size).any()


def _in_pieces(place: Numbers, source: Numbers, is_moved: NDArray[np.bool_], num_rows: int) -> str:
    if stripe := _stripe(place, source):
        return stripe
    lag = (source - place)[is_moved]
    if not len(lag):
        return ""
    lags, counts = np.unique(lag, return_counts=True)
    pieces = list(_pieces(place, source))
    backward = float((lag < 0).mean())
    distinct = len(np.unique(source)) / len(source)
    if len(lags) > 1 and min(backward, 1 - backward) >= _BOTH_WAYS and distinct >= _ONCE:
        return f"{len(pieces)} pieces changed places"
    restarts = _restarts(place, source)
    if len(restarts) and backward == 1.0:
        slices = f"{len(restarts) + 1} pieces begin with the request's first row"
        return slices if _at_slices(restarts, num_rows) else ""
    if len(lags) > 1 and counts.max() >= _ONE_LAG * counts.sum():
        return ""
    if min(backward, 1 - backward) > 0:
        return ""
    before = place < place[is_moved][0]  # rows in place in front are the first piece
    return _growing(place[is_moved | before], source[is_moved | before])


def _growing(place: Numbers, source: Numbers) -> str:
    """Each piece is shifted by as much more than the one before."""
    lag = np.abs(source - place)
    lags, first = np.unique(lag, return_index=True)
    if len(lags) < 3 or (np.diff(lag) < 0).mean() > 1 - _MONOTONE or (np.diff(first) < 0).any():
        return ""
    steps = np.diff(lags)
    if lags[0] > steps.min() or (steps % steps.min()).any():
        return ""
    return f"{len(lags)} pieces, each {int(steps.min())} further off than the one before,"


def _stripe(place: Numbers, source: Numbers) -> str:
    """Every n-th row one after another, or pieces dealt out in turn."""
    if len(place) < 2 * _FEWEST:
        return ""
    follows = np.diff(place) == 1
    steps = np.diff(source)[follows]
    if not len(steps) or (steps == 1).mean() > 1 - _STRIPED:
        return ""
    values, counts = np.unique(steps, return_counts=True)
    step = int(values[counts.argmax()])
    if step > 1 and counts.max() >= _STRIPED * len(steps):
        return f"every {_ordinal(step)} row stands one after another"
    at = np.full(int(place.max()) + 1, -1, dtype=np.int64)
    at[place] = source
    for ranks in range(2, min(MOST_RANKS, len(place) // 2) + 1):
        before, after = at[:-ranks], at[ranks:]
        asked = (before >= 0) & (after >= 0)
        if asked.sum() >= _FEWEST and (after - before == 1)[asked].mean() >= _STRIPED:
            return f"rows of {ranks} pieces in turn"
    return ""


def _pieces(place: Numbers, source: Numbers) -> Iterator[slice]:
    """Runs of one lag."""
    lag = source - place
    starts = np.flatnonzero(np.diff(lag, prepend=lag[0] - 1) != 0)
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(lag)], strict=True):
        yield slice(start, stop)


def _ordinal(number: int) -> str:
    return {2: "2nd", 3: "3rd"}.get(number, f"{number}th")


def unknown_ends(mismatch: Mismatch, pattern: Pattern) -> bool:
    """Whether the rows that the shift leaves open hold routing of their own, of tokens that are not there."""
    alignment, moved = mismatch.alignment, mismatch.moved
    own, lag = alignment.rows_of_pair(pattern.pair), pattern.main_lag
    size = min(abs(lag), pattern.num_rows // 2)
    if own.stop - own.start <= abs(lag):
        return False
    ends = np.arange(own.start, own.start + size) if lag < 0 else np.arange(own.stop - size, own.stop)
    if mismatch.unrouted[ends].any() or not moved.misplaced[ends].all():
        return False
    if (moved.source[ends] >= 0).any():
        return False
    held = mismatch.ids("a", ends)
    inner = mismatch.ids("a", ends + (size if lag < 0 else -size))
    repeats = (held[1:] == held[:-1]).all(axis=(1, 2)).any() or (held == inner).all(axis=(1, 2)).any()
    return not bool(repeats)
