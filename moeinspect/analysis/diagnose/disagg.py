"""Wrong prompts of a disaggregated run: not merged, or never stored by the worker that ran them."""

from __future__ import annotations

import numpy as np

from moeinspect.analysis.diagnose.mismatch import NEARLY_ALL, Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.provenance import computed_nowhere, workers_of
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import percent
from moeinspect.analysis.findings import Diagnosis


def diagnose_prompt_of_elsewhere(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`no-merge` and `skip-finalize-prefill` where slots were used before: prompt rows wrong as a whole."""
    if mismatch.share_in("prompt") < NEARLY_ALL or mismatch.facts.disagg is False:
        return None
    wrong = np.zeros(len(mismatch.a.rows), dtype=bool)
    wrong[mismatch.alignment.a_row[mismatch.rows]] = True
    workers = " and ".join(workers_of(mismatch.a, wrong))
    if (computed_nowhere(mismatch.a) & wrong).sum() >= NEARLY_ALL * wrong.sum():
        because = [
            f"the wrong rows are prompt rows, and {workers} which returned them says that it never computed "
            "them (step -1): the rows of the worker that ran the prompt were not merged in",
            "they hold whatever its host buffer had under these KV slots",
        ]
        return diagnosis("no-merge", 0.95, because, mismatch.a)
    unwritten = mismatch.rows | mismatch.unrouted
    prompt = mismatch.regions["prompt"]
    if mismatch.facts.disagg and mismatch.facts.overlap and workers and unwritten[prompt].mean() > 0.9:
        because = [
            f"{percent(float(unwritten[prompt].mean()))} of the prompt rows are wrong and no output row is",
            f"they come from {workers}, which says that it computed them: its host buffer was never written",
        ]
        return diagnosis("skip-finalize-prefill", 0.8, because, mismatch.a)
    return None
