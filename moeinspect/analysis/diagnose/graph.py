"""One row under many tokens: padding that reached real slots, or a static buffer that is read late."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.mismatch import NEARLY_ALL, Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import counted, percent
from moeinspect.analysis.findings import Diagnosis

_REPEATED = 0.8
"""Share of wrong rows that have to stand more than once."""

_WHOLE_ROWS = 0.5
"""Share of the cells of wrong rows that are wrong: another row than the right one is so in most layers."""


def diagnose_static_rows(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`graph-static-rows`: the rows of a request's decode steps are one and the same."""
    decoded = mismatch.is_decoded
    if mismatch.facts.graph is False or decoded[mismatch.rows].mean() < NEARLY_ALL:
        return None
    pair = mismatch.alignment.pair[sources.rows].astype(np.uint64)
    repeated, contents = _repeated(np.stack([pair, sources.held], axis=1))
    if repeated < _REPEATED or _wrong_share(mismatch) < _WHOLE_ROWS:
        return None
    because = [
        f"{percent(repeated)} of the wrong rows stand more than once in their request: "
        f"{counted(contents, 'row content')} in {counted(len(sources), 'wrong row')} of "
        f"{counted(len(np.unique(pair)), 'request')}",
        f"{percent(mismatch.share_among(decoded))} of the rows of decode steps are wrong, and hardly any "
        "other: a static buffer was read once, after the last replay",
    ]
    return diagnosis("graph-static-rows", 0.92, because, mismatch.a)


def diagnose_padded_rows(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`padded-rows`: the row of padding stands under the tokens of prefill steps."""
    prefilled = ~mismatch.is_decoded
    if mismatch.facts.graph is False or prefilled[mismatch.rows].mean() < NEARLY_ALL:
        return None
    repeated, contents = _repeated(sources.held[:, None])
    strange = 1 - float(sources.anywhere.mean())
    if _wrong_share(mismatch) < _WHOLE_ROWS:
        return None
    if strange < _REPEATED or (len(sources) > 1 and repeated < _REPEATED):
        return None
    because = [
        f"{counted(len(sources), 'wrong row')} of prefill steps hold {counted(contents, 'row content')}",
        f"{percent(strange)} of them hold no row that any token of the trace should have: padding of a chunk "
        "was captured like a token and reached real slots",
    ]
    return diagnosis("padded-rows", 0.9 if len(sources) > 1 else 0.5, because, mismatch.a)


def _wrong_share(mismatch: Mismatch) -> float:
    """Share of the cells in question of the wrong rows that are wrong."""
    rows = mismatch.rows
    return float(mismatch.cells[rows].sum() / max(1, mismatch.in_question[rows].sum()))


def _repeated(keys: NDArray[np.uint64]) -> tuple[float, int]:
    """Share of keys [n, m] that stand more than once, and the number of different ones."""
    _, sizes = np.unique(keys, axis=0, return_counts=True)
    return float(sizes[sizes > 1].sum() / max(1, len(keys))), len(sizes)
