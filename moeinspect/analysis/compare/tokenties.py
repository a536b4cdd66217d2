"""Outputs that part because rounding turned a token over.

What is captured never changes a token, so other tokens are no sign of a wrong capture; but they may be one
of another model, seed or text. Rounding parts outputs seldom, and never prompts: in fp32 only after a flip
has changed the hidden state, in coarser dtypes at a small share of the output tokens.
"""

from __future__ import annotations

import numpy as np

from moeinspect.analysis.align import NEVER, Alignment
from moeinspect.analysis.compare.cellwise import CellResults
from moeinspect.analysis.compare.floor import FloorVerdict
from moeinspect.analysis.compare.floor.largedev import log_poisson_tail
from moeinspect.analysis.compare.floor.measure import divergences
from moeinspect.analysis.compare.neartie import NearTies
from moeinspect.analysis.compare.tolerance import Tolerance

_PER_TOKEN = 0.05
"""Largest share of output tokens that rounding turns over; measured in bf16: 0.003 to 0.023."""

_LOG_CHANCE = float(np.log(1e-3))


def token_ties(
    alignment: Alignment,
    cells: CellResults,
    ties: NearTies,
    tolerance: Tolerance,
    floor: FloorVerdict | None,
) -> frozenset[int]:
    """Numbers of the pairs whose first token difference rounding, or the noise floor, explains."""
    parted = [
        number
        for number, (request_a, request_b) in enumerate(alignment.pairing.pairs)
        if _in_output(alignment, number, request_a, request_b)
    ]
    if not parted or tolerance.exact:
        return frozenset()
    if floor is not None and floor.tokens_within:
        return frozenset(parted)
    if not ties.has_margins:
        return frozenset()
    diverged, tokens = divergences(alignment)
    if tolerance.dtype != "float32" and log_poisson_tail(diverged, _PER_TOKEN * tokens) < _LOG_CHANCE:
        return frozenset()
    explained = ties.explained_sets if floor is None else ties.explained_sets | floor.within["set"]
    return frozenset(
        number
        for number in parted
        if not (cells.set_mismatch & ~explained)[alignment.rows_of_pair(number)].any()
        and (tolerance.dtype != "float32" or ties.explained_sets[alignment.rows_of_pair(number)].any())
    )


def _in_output(alignment: Alignment, number: int, request_a: int, request_b: int) -> bool:
    first = alignment.pair_rows[number].first_difference
    prompt_len = int(alignment.a.requests.prompt_len[request_a])
    same_prompt = prompt_len == int(alignment.b.requests.prompt_len[request_b])
    return same_prompt and prompt_len <= first != NEVER
