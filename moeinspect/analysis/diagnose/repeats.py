"""One row that stands for several tokens: a padded graph, a static buffer, or a copy of the last row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.facts import knows_workers, run_facts
from moeinspect.analysis.diagnose.fillers import filler_kinds
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.provenance import rows_of_findings
from moeinspect.analysis.diagnose.words import counted
from moeinspect.analysis.findings import Diagnosis, Finding
from moeinspect.analysis.requests import fed_rows
from moeinspect.trace.schema import Origin, Trace

_MOST = 0.8


def diagnose_repeated(trace: Trace, findings: tuple[Finding, ...]) -> Diagnosis:
    """Tells them apart by the run's graphs, and without them by where the runs stand and what they hold.

    Padding of a graph is the same strange row in every request; a static buffer fills outputs from their
    first row on; a trainer copies the last row that each request has, wherever that is.
    """
    because = [f"{counted(len(findings), 'run')} of identical rows under different tokens"]
    firsts = _first_rows(trace, findings)
    kinds = filler_kinds(trace, firsts)
    if (kinds["arange"] | kinds["running"] | kinds["constant"]).mean() >= _MOST:
        because.append("they hold a numbering, and no router's choice")
        return diagnosis("filler-as-real", 0.85, because, trace)
    graph = run_facts(trace).graph
    named = rows_of_findings(trace, findings)
    decoded = np.isin(trace.rows.origin, (Origin.DECODE, Origin.VERIFY))
    share = float(decoded[named].mean())
    in_output = share == 1 if knows_workers(trace) else all(f.region == "output" for f in findings)
    in_prompt = share == 0 if knows_workers(trace) else all(f.region == "prompt" for f in findings)
    if graph is False:
        because.append("graphs were off, so there were no padded rows and no static buffer")
        because.append("what is left are copies of a row that was there, as trainers pad")
        return diagnosis("filler-as-real", 0.6, because, trace)
    differ = len(np.unique(trace.rows.expert_ids[firsts], axis=0)) > 1
    if in_prompt and (graph or not differ):
        because.append("all of them in prefill steps, where padded rows of a chunk reach real slots")
        if not graph and len(firsts) == 1:
            return diagnosis("filler-as-real|padded-rows", 0.6, because, trace)
        return diagnosis("padded-rows", 0.8 if graph else 0.7, because, trace)
    if in_output and (graph or _fill_outputs(trace, findings)):
        because.append("all of them in decode steps, as if one static buffer were read for every step")
        return diagnosis("graph-static-rows", 0.8 if graph else 0.7, because, trace)
    if graph:
        return diagnosis("graph-static-rows|padded-rows", 0.5, because, trace)
    if differ or not in_prompt:
        because.append(
            "no one strange row, and outputs are not filled: copies of a row that was there, as trainers pad"
        )
    return diagnosis("filler-as-real", 0.7, because, trace)


def _first_rows(trace: Trace, findings: tuple[Finding, ...]) -> NDArray[np.int64]:
    """The first row [n] of each run, in the file."""
    starts = trace.requests.row_start[_numbers(trace, findings)]
    return np.asarray(starts + np.asarray([f.rows[0] if f.rows else 0 for f in findings]), dtype=np.int64)


def _fill_outputs(trace: Trace, findings: tuple[Finding, ...]) -> bool:
    """Whether most runs go from the first output row of their request to its last one."""
    requests, fed = trace.requests, fed_rows(trace.requests)
    filled = 0
    for number, finding in zip(_numbers(trace, findings).tolist(), findings, strict=True):
        first = int(requests.prompt_len[number]) - int(requests.start_pos[number])
        filled += (
            finding.rows is not None and finding.rows[0] <= first and finding.rows[1] >= int(fed[number])
        )
    return filled >= _MOST * len(findings)


def _numbers(trace: Trace, findings: tuple[Finding, ...]) -> NDArray[np.int64]:
    """Number of the request of each finding [n]."""
    keys = zip(trace.requests.id.tolist(), trace.requests.sample.tolist(), strict=True)
    number = {key: place for place, key in enumerate(keys)}
    found = [number[str(f.request), f.evidence.get("sample", 0)] for f in findings]
    return np.asarray(found, dtype=np.int64)
