"""Rows at other places of their request: `row-shift`, `prompt-truncated`, `cp-slice`, `merge-misaligned`."""

from __future__ import annotations

import numpy as np

from moeinspect.analysis.diagnose.mismatch import NEARLY_ALL, Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.patterns import Pattern, patterns_of, unknown_ends
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import counted, of_all, percent
from moeinspect.analysis.findings import Diagnosis

_MOST = 0.8
_FOUND = 0.7
"""Share of the misplaced rows that has to be found: what lies beyond an end is in no request."""

_HALF_ROWS = 2
"""How far from the middle a seam between two ranks may be, in rows."""


def diagnose_moved(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """What no engine's fault looks like: pieces, stripes, and lags that the prompt's rows have, too.

    Nothing that ends with a cached prefix: pages that a request got back in other slots are pieces, too.
    """
    cached = mismatch.regions["cached_prefix"]
    if mismatch.share_in("cached_prefix") >= NEARLY_ALL and not cached[mismatch.rows_in_question].all():
        return None
    if (packed := _in_packs(mismatch)) is not None:
        return packed
    patterns = _patterns(mismatch)
    if not patterns:
        return None
    if (sliced := _in_pieces(mismatch, patterns)) is not None:
        return sliced
    if _share([_in_prompt(mismatch, one) for one in patterns]) < 0.3:
        return None
    return _by_one_lag(mismatch, patterns)


def diagnose_shifted_rows(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """Lags that outputs have alone, which an engine can make as well."""
    patterns = _patterns(mismatch)
    return _by_one_lag(mismatch, patterns) if patterns else None


def _patterns(mismatch: Mismatch) -> list[Pattern]:
    """How rows were moved in each request, if that explains most of what is misplaced."""
    moved = mismatch.moved
    misplaced = moved.misplaced
    found = moved.in_request | moved.elsewhere
    if not (moved.in_request & misplaced).any() or moved.in_request[misplaced].mean() < 0.4:
        return []
    patterns = patterns_of(mismatch)
    explained = found & misplaced
    for one in patterns:
        own = mismatch.alignment.rows_of_pair(one.pair)
        if one.is_constant:  # an end of as many rows as the lag is long may hold anything
            size = min(abs(one.main_lag), own.stop - own.start)
            ends = (
                slice(own.start, own.start + size) if one.main_lag < 0 else slice(own.stop - size, own.stop)
            )
            explained[ends] = misplaced[ends]
    return patterns if explained.sum() >= _FOUND * misplaced.sum() else []


def _in_packs(mismatch: Mismatch) -> Diagnosis | None:
    """`cp-slice`: rows of the whole file at one lag in each request, on into the next ones."""
    alignment, moved = mismatch.alignment, mismatch.moved
    rows = np.flatnonzero(moved.misplaced & (moved.source >= 0))
    if not moved.elsewhere[rows].any() or len(rows) < _FOUND * moved.misplaced.sum():
        return None
    pair, lag = alignment.pair[rows].astype(np.int64), moved.source[rows] - alignment.b_row[rows]
    both, counts = np.unique(np.stack([pair, lag], axis=1), axis=0, return_counts=True)
    most = np.zeros(len(alignment.pairing.pairs), dtype=np.int64)
    np.maximum.at(most, both[:, 0], counts)
    owner = np.searchsorted(mismatch.comparison.b.requests.row_start, moved.source[rows], side="right")
    spans = np.unique(np.unique(np.stack([pair, owner], axis=1), axis=0)[:, 0], return_counts=True)
    crossing = int((spans[1] > 1).sum())
    if most.sum() < 0.9 * len(rows) or crossing < max(2, 0.3 * len(spans[0])):
        return None
    because = [
        f"{counted(len(rows), 'row')} hold those of other places in the file, at one lag in each request, "
        f"and {counted(crossing, 'request')} go on into the next one: packed sequences whose rows and tokens "
        "are padded differently",
    ]
    return diagnosis("cp-slice", 0.95, because, mismatch.a)


def _in_pieces(mismatch: Mismatch, patterns: list[Pattern]) -> Diagnosis | None:
    cut = [one for one in patterns if one.in_pieces]
    if len(cut) < 0.6 * len(patterns):
        return None
    words = max((one.in_pieces for one in cut), key=lambda text: sum(o.in_pieces == text for o in cut))
    because = [
        f"{_rows_found(mismatch)} hold rows of other positions of the same request, in another order: "
        f"{words} in request {mismatch.alignment.request_id(_first_with(cut, words).pair)!r}",
        f"so in {of_all(len(cut), len(patterns), 'affected request')}: slices for ranks that were put "
        "together in another order than they were cut in",
    ]
    return diagnosis("cp-slice", 0.96, because, mismatch.a)


def _first_with(patterns: list[Pattern], words: str) -> Pattern:
    return next(one for one in patterns if one.in_pieces == words)


def _by_one_lag(mismatch: Mismatch, patterns: list[Pattern]) -> Diagnosis | None:
    constant = [one for one in patterns if one.is_constant and not one.begins_again]
    if len(constant) < 0.6 * len(patterns):
        return None
    lags = sorted({one.main_lag for one in constant})
    shown = ", ".join(f"{lag:+d}" for lag in lags[:6]) + (" and more" if len(lags) > 6 else "")
    because = [f"{_rows_found(mismatch)} hold rows of other positions of the same request, at lag {shown}"]
    for find in (_of_cut_prompts, _across_seams, _at_prompt_end, _of_lost_tokens, _from_the_middle):
        if (found := find(mismatch, constant, because)) is not None:
            return found
    where = "the same lag" if len(lags) == 1 else "one lag in each request"
    at_start = _share([one.first <= max(0, -one.main_lag) for one in constant])
    if at_start >= _MOST:
        because.append(f"{where}, from the first row of each request on")
        return diagnosis("row-shift", 0.93 if len(lags) == 1 else 0.85, because, mismatch.a)
    because.append(
        f"{where}, from places on that are neither the end of the prompt nor the same part of each request: "
        "rows were lost or doubled there"
    )
    return diagnosis("row-shift", 0.86, because, mismatch.a)


def _of_cut_prompts(mismatch: Mismatch, patterns: list[Pattern], because: list[str]) -> Diagnosis | None:
    """`prompt-truncated`: the tokens tell that the prompt was cut, by as much as the rows are off."""
    cuts = [mismatch.alignment.pair_rows[one.pair].cut for one in patterns]
    off = [abs(one.main_lag) == abs(cut) for one, cut in zip(patterns, cuts, strict=True) if cut]
    if _share(off) < _MOST or len(off) < _MOST * len(patterns):
        return None
    because.append(
        f"{of_all(len(off), len(patterns), 'affected request')} lack the first tokens of their prompts, as "
        "many as the rows are off: tokens were cut and rows were not, or not in the same way"
    )
    return diagnosis("prompt-truncated", 0.97, because, mismatch.a)


def _across_seams(mismatch: Mismatch, patterns: list[Pattern], because: list[str]) -> Diagnosis | None:
    """`cp-slice`: the lag goes on into the neighbouring request, as in a pack."""
    alignment, moved = mismatch.alignment, mismatch.moved
    lag = np.zeros(len(alignment.pairing.pairs), dtype=np.int64)
    for one in patterns:
        lag[one.pair] = one.main_lag
    spilled = np.flatnonzero(moved.elsewhere)
    same = lag[alignment.pair[spilled]] == moved.source[spilled] - alignment.b_row[spilled]
    pairs = np.unique(alignment.pair[spilled[same]])
    lags = [one.main_lag for one in patterns]
    if len(pairs) >= max(1, 0.3 * len(patterns)) and same.sum() >= _MOST * len(spilled):
        because.append(
            f"{counted(int(same.sum()), 'row')} at the ends of {counted(len(pairs), 'request')} hold those "
            "of the next request in the file, at the same lag: packed sequences whose rows and tokens are "
            "padded differently"
        )
        return diagnosis("cp-slice", 0.95, because, mismatch.a)
    steps = np.diff(lags)
    if len(set(lags)) > 2 and len({*np.sign(lags).tolist()}) == 1 and _grows(np.abs(np.asarray(lags))):
        because.append(
            f"the lag grows from request to request ({', '.join(f'{lag:+d}' for lag in lags[:6])}), as at "
            "the seams of packed sequences"
        )
        return diagnosis("cp-slice", 0.9 if (steps[:2] == steps[0]).all() else 0.8, because, mismatch.a)
    return None


def _grows(lags: np.ndarray[tuple[int], np.dtype[np.int64]]) -> bool:
    """Whether lags grow with each request and begin anew with each pack."""
    steps = np.diff(lags)
    down = steps < 0
    return bool((steps != 0).all() and down.mean() <= 0.5 and (lags[1:][down] <= np.median(lags)).all())


def _at_prompt_end(mismatch: Mismatch, patterns: list[Pattern], because: list[str]) -> Diagnosis | None:
    """`merge-misaligned`: right up to the end of the prompt, and shifted from there on."""
    at_seam = 0
    for one in patterns:
        prompt_len = int(mismatch.comparison.b.requests.prompt_len[_request_b(mismatch, one)])
        start_pos = int(mismatch.comparison.b.requests.start_pos[_request_b(mismatch, one)])
        at_seam += one.first + start_pos in (prompt_len, prompt_len - one.main_lag)
    if at_seam < _MOST * len(patterns):
        return None
    because.append(
        f"{of_all(at_seam, len(patterns), 'shift')} start where the prompt ends, or as many rows later as "
        "the lag is long: the seam between two workers' rows"
    )
    return diagnosis("merge-misaligned", 0.95 if mismatch.facts.disagg else 0.8, because, mismatch.a)


def _of_lost_tokens(mismatch: Mismatch, patterns: list[Pattern], because: list[str]) -> Diagnosis | None:
    """`prompt-truncated`: rows that the shift leaves open hold routing of tokens that are not there."""
    open_ends = [unknown_ends(mismatch, one) for one in patterns]
    from_start = [one.first <= max(0, -one.main_lag) for one in patterns]
    if _share(open_ends) < _MOST or _share(from_start) < _MOST:
        return None
    because.append(
        f"the rows at the other end of {of_all(sum(open_ends), len(patterns), 'affected request')} are valid "
        "and no token's of the request: they belong to tokens that were cut off"
    )
    return diagnosis("prompt-truncated", 0.93, because, mismatch.a)


def _from_the_middle(mismatch: Mismatch, patterns: list[Pattern], because: list[str]) -> Diagnosis | None:
    """`cp-slice` for two ranks: the second half of every request is shifted."""
    in_middle = [abs(one.first - -(-_rows_b(mismatch, one) // 2)) <= _HALF_ROWS for one in patterns]
    lengths = {_rows_b(mismatch, one) for one in patterns}
    if _share(in_middle) < _MOST or min(lengths) < 4 * _HALF_ROWS:
        return None
    because.append("from the middle of each request on: the second of two ranks has a shifted slice")
    cause = "cp-slice" if len(lengths) > 2 else "cp-slice|row-shift"
    return diagnosis(cause, 0.9, because, mismatch.a)


def _request_b(mismatch: Mismatch, pattern: Pattern) -> int:
    return mismatch.alignment.pairing.pairs[pattern.pair][1]


def _rows_b(mismatch: Mismatch, pattern: Pattern) -> int:
    return int(mismatch.comparison.b.requests.num_rows[_request_b(mismatch, pattern)])


def _in_prompt(mismatch: Mismatch, pattern: Pattern) -> bool:
    """Whether several rows of the prompt have the main lag."""
    requests, request = mismatch.comparison.b.requests, _request_b(mismatch, pattern)
    end = int(requests.prompt_len[request]) - int(requests.start_pos[request])
    at_lag = pattern.place[pattern.lag == pattern.main_lag]
    return bool((at_lag < end).sum() >= min(3, max(1, end - abs(pattern.main_lag))))


def _rows_found(mismatch: Mismatch) -> str:
    moved = mismatch.moved
    misplaced, found = int(moved.misplaced.sum()), int(moved.in_request.sum())
    return f"{percent(found / max(1, misplaced))} of {counted(misplaced, 'misplaced row')}"


def _share(marks: list[bool]) -> float:
    return sum(marks) / len(marks) if marks else 0.0
