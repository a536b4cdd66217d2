"""What a comparison tells where no row names its step, worker or kind: foreign answers.

Causes are read off where the wrong rows of each request stand, and off whose rows they hold.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.facts import knows_workers
from moeinspect.analysis.diagnose.mismatch import NEARLY_ALL, Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import counted, of_all, percent
from moeinspect.analysis.findings import Diagnosis
from moeinspect.analysis.rules.hashing import prefix_hashes
from moeinspect.trace.schema import Trace

_UNTOUCHED = 0.02
_FEW, _MOST, _WHOLE = 0.1, 0.5, 0.9
_CHANCE = 1e-3
"""Below this an observation is not put down to chance where it only chooses between two causes."""

_LONGEST_TAIL = 8
"""Rows that the last two steps of a request leave at most: accepted drafts, mostly one token each."""

_RIGHT = 0.2
"""Share of the requests that one data-parallel rank has at least."""

_FEWEST = 4
"""Output rows that a request needs to count as right, or as wrong, from end to end."""


def diagnose_lagging_buffer(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`buffer-reuse`: prompts and outputs hold later rows, each output row the next one of its request."""
    if knows_workers(mismatch.a) or mismatch.facts.overlap is False or len(sources) < _FEWEST:
        return None
    is_prompt = mismatch.alignment.is_prompt[sources.rows]
    if is_prompt.all() or not is_prompt.any() or sources.anywhere.mean() < _WHOLE:
        return None
    following, before = sources.at_lag(1), sources.at_lag(-1)
    if following[~is_prompt].mean() < _MOST or before[~is_prompt].mean() > _UNTOUCHED:
        return None
    if following[is_prompt].mean() > _MOST:
        return None  # one lag for everything is a shift, which has causes of its own
    because = [
        f"{percent(float(following[~is_prompt].mean()))} of the wrong output rows hold the next row of their "
        "request, as the next step's forward leaves it",
        f"{percent(float(sources.anywhere[is_prompt].mean()))} of the wrong prompt rows hold rows of other "
        "tokens, at no common lag: those of the chunk or step that came next",
    ]
    if mismatch.facts.overlap:
        because.append(
            "overlap scheduling was on: the next forward runs while the last one's rows are copied"
        )
    return diagnosis("buffer-reuse", 0.85 if mismatch.facts.overlap else 0.65, because, mismatch.a)


def diagnose_last_rows(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`read-early`: a few rows at the end of requests, and nothing else."""
    if knows_workers(mismatch.a) or mismatch.facts.overlap is False:
        return None
    alignment, wrong = mismatch.alignment, mismatch.rows | mismatch.unrouted
    num_rows, tails, touched, ends = mismatch.of_request("num_rows"), 0, 0, 0
    for pair in range(len(alignment.pairing.pairs)):
        own = alignment.rows_of_pair(pair)
        size = own.stop - own.start
        if not size or size < num_rows[own.start]:
            continue
        ends += 1
        right = np.flatnonzero(~wrong[own])
        tail = size - (int(right[-1]) + 1 if len(right) else 0)
        touched += bool(wrong[own].any())
        tails += 0 < tail <= min(_LONGEST_TAIL, size - 1) and wrong[own].sum() == tail
    if touched < 2 or tails < _WHOLE * touched or tails < _MOST * ends:
        return None
    if len(sources) and sources.anywhere.mean() < _MOST:
        return None  # rows that nobody else has are not what a slot had before
    because = [
        f"the wrong rows are the last ones of {of_all(tails, touched, 'affected request')}, and no others: "
        "rows of the last steps were collected before their copy had arrived",
    ]
    if len(sources):
        because.append(
            f"{percent(float(sources.anywhere.mean()))} of them hold the row of another token, as a slot "
            "has it from a former owner"
        )
    return diagnosis("read-early", 0.85 if mismatch.facts.overlap else 0.65, because, mismatch.a)


def diagnose_shared_prefix(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`stale-slot`: only rows that several requests have in common are wrong, and hold other tokens' rows."""
    if mismatch.facts.prefix_cache is False or bool(mismatch.a.requests.cached_tokens.any()):
        return None
    if knows_workers(mismatch.a) or mismatch.facts.host_tier is False:
        return None
    wrong = mismatch.rows | mismatch.unrouted
    shared = _shared_rows(mismatch)
    if not wrong.any() or shared[wrong].mean() < NEARLY_ALL or shared.mean() > _WHOLE:
        return None
    if shared.mean() ** int(min(wrong.sum(), 1000)) > _CHANCE or wrong[shared].all():
        return None
    if len(sources) and sources.anywhere.mean() < _MOST:
        return None
    because = [
        f"{percent(float(shared[wrong].mean()))} of the wrong rows stand where their request begins like "
        f"another one, as {percent(float(shared.mean()))} of all rows do: a prefix cache shares these",
        f"{percent(float(wrong[shared].mean()))} of such rows are wrong: whoever computed a prefix first has "
        "right ones",
    ]
    if mismatch.facts.host_tier:
        because.append("a host tier was configured: restored KV gets other slots than it had")
    return diagnosis("stale-slot", 0.85 if mismatch.facts.host_tier else 0.65, because, mismatch.a)


def diagnose_whole_prompts(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`no-merge`, `skip-finalize-prefill`: prompt rows are what their slots had, output rows right."""
    facts = mismatch.facts
    if knows_workers(mismatch.a) or facts.disagg is False:
        return None
    wrong, prompt = mismatch.rows | mismatch.unrouted, mismatch.alignment.is_prompt
    if prompt.all() or not prompt.any() or wrong[~prompt].any() or wrong[prompt].mean() < _WHOLE:
        return None
    if len(sources) and sources.anywhere.mean() < _MOST:
        return None
    because = [
        f"{percent(float(wrong[prompt].mean()))} of the prompt rows are wrong and no output row is: they "
        "hold zeros, or rows of other requests, as the slots had them where the prompt never ran",
    ]
    if facts.overlap is False:
        because.append("overlap scheduling was off, so no delayed copy can have been forgotten")
        return diagnosis("no-merge", 0.8 if facts.disagg else 0.6, because, mismatch.a)
    sure = 0.8 if facts.disagg else 0.6
    return diagnosis("no-merge|skip-finalize-prefill", sure, because, mismatch.a)


def diagnose_outputs(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`dp-slice`, `verify-dropped`, `draft-forward-end`, `tree-rows` where only output rows are wrong."""
    facts = mismatch.facts
    if knows_workers(mismatch.a) or facts.draft is False or mismatch.share_in("output") < 1.0:
        return None
    if mismatch.unrouted[mismatch.alignment.is_prompt].any() or mismatch.may_be_rounding:
        return None
    if not len(sources):
        return None
    share = mismatch.share_of("output")
    because = [
        f"{percent(share)} of the output rows are wrong and no prompt row is",
        f"{percent(mismatch.overlap_at(np.arange(len(mismatch.layers))))} of the experts in common there",
    ]
    if facts.draft is None:
        because.append("the trace does not tell whether a draft was configured")
    for look in (_dp_slice, _verify_dropped, _draft_or_tree):
        if (found := look(mismatch, sources, because)) is not None:
            return found
    return None


def _dp_slice(mismatch: Mismatch, sources: Sources, because: list[str]) -> Diagnosis | None:
    """Requests of some ranks are right from end to end; others hold rows of these, and of rejected tokens."""
    facts, requests = mismatch.facts, _shares_of_outputs(mismatch)
    right, wrong = int((requests <= _UNTOUCHED).sum()), int((requests >= _MOST).sum())
    if facts.dp_size == 1 or right < 2 or wrong < 2 or sources.elsewhere.mean() < _FEW:
        return None
    several = facts.dp_size is not None and facts.dp_size > 1
    if right < _RIGHT * len(requests):
        return None
    reasons = [
        f"outputs are wrong as a whole in {wrong} requests and right as a whole in {right}: as if requests "
        "on one data-parallel rank were right and those on others held a neighbour's rows",
        f"{percent(float(sources.elsewhere.mean()))} of the wrong rows are rows of other requests; rows of "
        "rejected tokens are not in a trace",
    ]
    return diagnosis("dp-slice", 0.85 if several else 0.6, because + reasons, mismatch.a)


def _verify_dropped(mismatch: Mismatch, sources: Sources, because: list[str]) -> Diagnosis | None:
    """Nothing was stored: every output row is zero, or the row of another token that had the slot before."""
    wrong, output = mismatch.rows | mismatch.unrouted, ~mismatch.alignment.is_prompt
    if wrong[output].mean() < _WHOLE or sources.anywhere.mean() < _WHOLE:
        return None
    reason = "all of them hold zeros or rows of other tokens, as a slot has them that nothing was stored in"
    return diagnosis("verify-dropped", 0.85 if mismatch.facts.draft else 0.6, [*because, reason], mismatch.a)


def _draft_or_tree(mismatch: Mismatch, sources: Sources, because: list[str]) -> Diagnosis | None:
    """The row after the prompt is the root of the first verify step's tree: never out of place."""
    facts, alignment = mismatch.facts, mismatch.alignment
    first = ~alignment.is_prompt & (alignment.position == mismatch.of_request("prompt_len"))
    if facts.draft_tree is False or not first.any():
        return None
    may_store_late = facts.draft_layers is not False and facts.overlap is not False
    told = 0.9 if facts.draft_tree else 0.6
    displaced = int((mismatch.cells[first].mean(axis=1) >= _MOST).sum())
    elsewhere = float(sources.elsewhere.mean())
    if displaced >= max(2, _FEW * first.sum()):
        if not may_store_late:
            return None
        reasons = [
            f"{displaced} of the {counted(int(first.sum()), 'token')} right after a prompt have wrong rows, "
            "too: as roots of the first verify step those need no compaction",
            f"{percent(elsewhere)} of the wrong rows are rows of other requests: the draft's forward stored "
            "what the target had left, in a layout of its own",
        ]
        sure = told if elsewhere >= _FEW else told - 0.2
        return diagnosis("draft-forward-end", sure, because + reasons, mismatch.a)
    reasons = [
        "tokens right after a prompt have right rows, which the first verify step feeds as the root of its "
        "tree: the accepted path was compacted in KV, not in the rows",
    ]
    by_chance = (1 - mismatch.share_of("output")) ** int(first.sum()) > _CHANCE
    if may_store_late and by_chance and elsewhere >= _FEW:
        reasons.append(f"with {counted(int(first.sum()), 'request')} that may be chance")
        return diagnosis("draft-forward-end|tree-rows", told - 0.05, because + reasons, mismatch.a)
    return diagnosis("tree-rows", told, because + reasons, mismatch.a)


def _shares_of_outputs(mismatch: Mismatch) -> NDArray[np.float64]:
    """Share of wrong output rows of each request that has some."""
    alignment, wrong = mismatch.alignment, mismatch.rows | mismatch.unrouted
    output = ~alignment.is_prompt
    sizes = np.bincount(alignment.pair[output], minlength=len(alignment.pairing.pairs))
    lost = np.bincount(alignment.pair[output & wrong], minlength=len(sizes))
    return np.asarray(lost[sizes >= _FEWEST] / sizes[sizes >= _FEWEST])


def _shared_rows(mismatch: Mismatch) -> NDArray[np.bool_]:
    """Rows [R] of prompt tokens up to which some other request of A has the same tokens."""
    alignment = mismatch.alignment
    tokens, row = _prefixes(mismatch.a)
    _, place, counts = np.unique(tokens, return_inverse=True, return_counts=True)
    shared = counts[place.reshape(-1)] > 1
    at = row[alignment.a_request] + alignment.position
    return np.asarray(shared[at] & alignment.is_prompt)


def _prefixes(trace: Trace) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Hash of each token's prefix, request after request, and where each request [N] begins there."""
    size = trace.requests.prompt_len.astype(np.int64) + trace.requests.output_len
    start = np.concatenate([[0], np.cumsum(size)])[:-1].astype(np.int64)
    owner = np.repeat(start, size)
    position = np.arange(len(owner), dtype=np.int64) - owner
    tokens = trace.tokens[np.repeat(trace.requests.token_start, size) + position]
    return prefix_hashes(tokens, position, owner), start
