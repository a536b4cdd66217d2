"""One row under many tokens: padding that reached real slots, or a static buffer that is read late."""

from __future__ import annotations

import numpy as np

from moeinspect.analysis.diagnose.mismatch import NEARLY_ALL, Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import counted, of_all, percent
from moeinspect.analysis.findings import Diagnosis

_REPEATED = 0.8


def diagnose_one_row(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`graph-static-rows` in decode steps, `padded-rows` elsewhere."""
    rows = sources.rows
    if mismatch.facts.graph is False or len(rows) < 4:
        return None
    pair = mismatch.alignment.pair[rows]
    groups, sizes = np.unique(np.stack([pair.astype(np.uint64), sources.held]), axis=1, return_counts=True)
    repeated = float(sizes[sizes > 1].sum() / len(rows))
    if repeated < _REPEATED:
        return None
    requests = len(np.unique(groups[0]))
    because = [
        f"{percent(repeated)} of the wrong rows stand more than once in their request: "
        f"{counted(len(sizes), 'row content')} in {counted(len(rows), 'wrong row')} of "
        f"{counted(requests, 'request')}"
    ]
    decoded = mismatch.is_decoded
    if decoded[mismatch.rows].mean() >= NEARLY_ALL:
        because.append(
            f"{percent(mismatch.share_among(decoded))} of the rows of decode steps are wrong, and no other "
            "row: a static buffer was read once, after the last replay"
        )
        return diagnosis("graph-static-rows", 0.92, because, mismatch.a)
    prompts = of_all(int((~decoded[mismatch.rows]).sum()), int(mismatch.rows.sum()), "wrong row")
    because.append(f"{prompts} are of prefill steps, where padded rows of a chunk reach real slots")
    return diagnosis("padded-rows", 0.85, because, mismatch.a)
