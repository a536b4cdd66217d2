"""Causes of rows and layers that hold zeros: the slot was never written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.arguments import VLLM
from moeinspect.analysis.diagnose.facts import EXPORTS_TOP_K, RunFacts, knows_workers, run_facts
from moeinspect.analysis.diagnose.gaps import diagnose_made, one_gap_each
from moeinspect.analysis.diagnose.layers import diagnose_zero_layers, first_stage_has_no_moe
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.provenance import (
    PromptShape,
    cached_rows,
    cells_of_findings,
    computed_nowhere,
    named_rows,
    prompt_rows,
    prompt_shape,
    rows_of_findings,
    workers_of,
    zero_rows,
)
from moeinspect.analysis.diagnose.shards import diagnose_shards
from moeinspect.analysis.diagnose.words import counted, of_all, percent
from moeinspect.analysis.exempt import places_to_capture
from moeinspect.analysis.findings import Diagnosis, Finding
from moeinspect.analysis.requests import is_imported
from moeinspect.trace.schema import Origin, Trace, Validity

ZERO_RULES = {"zero-rows", "zero-layers"}
_FEWEST_OUTPUTS = 4
"""Output rows from which on a request shows more than its last steps."""


def diagnose_zeros(trace: Trace, findings: tuple[Finding, ...]) -> list[Diagnosis]:
    """Causes of zero rows, of layers that are zero besides, and `unknown` for other zero cells."""
    zero = zero_rows(trace)
    rest = cells_of_findings(trace, [f for f in findings if f.rule in ZERO_RULES])
    found = []
    if zero.any():
        found += diagnose_zero_rows(trace, findings, zero)
        rest &= ~zero[:, None]
    layers = [f for f in findings if f.rule == "zero-layers"]
    besides = [f for f, rows in named_rows(trace, layers) if not zero[rows].all()]
    found += diagnose_zero_layers(trace, besides, rest)
    rest &= ~cells_of_findings(trace, besides)
    if rest.any():
        found.append(_some_layers(trace, rest))
    return found


def diagnose_zero_rows(
    trace: Trace, findings: tuple[Finding, ...], zero: NDArray[np.bool_]
) -> list[Diagnosis]:
    """Reads causes off which rows [R] are zero, and off who says that it computed them.

    Rows that are known to be a former owner's count like zeros: on a slot that was used before, a forgotten
    write leaves those. Where no slot is known, any other request's row does, on that side of the prompt's end
    on which all zeros stand: which of two equal rows is the copy is not known then.
    """
    unwritten = zero | _left_over(trace, findings, zero)
    whole = _of_rows(trace, zero, unwritten)
    for part in _parts(trace, whole):
        sides = [side for side in (part, ~part) if zero[side].any()]
        halves = [_of_rows(trace, zero & side, unwritten & side) for side in sides]
        if len(halves) == 2 and not any(half.cause in ("unknown", whole.cause) for half in halves):
            return halves
    return [whole]


def _parts(trace: Trace, whole: Diagnosis) -> Iterator[NDArray[np.bool_]]:
    """Rows [R] that may have a cause of their own: a cached prefix also where rows end like early reads."""
    if whole.cause in ("unknown", "read-early"):
        yield cached_rows(trace)
    if whole.cause == "unknown":
        yield prompt_rows(trace)


def _of_rows(trace: Trace, zero: NDArray[np.bool_], unwritten: NDArray[np.bool_]) -> Diagnosis:
    found = _cause_of_rows(trace, zero, unwritten)
    return replace(found, explains=int(zero.sum()) * len(places_to_capture(trace)))


def _cause_of_rows(trace: Trace, zero: NDArray[np.bool_], unwritten: NDArray[np.bool_]) -> Diagnosis:
    facts, shape = run_facts(trace), prompt_shape(trace, unwritten)
    if shape.is_everything or (shape.is_only_prompts and facts.disagg is False):
        return _everything(trace, facts, shape)
    if _ends_with_the_first_weights(trace, zero):
        return _of_first_weights(trace, zero)
    shards = None if one_gap_each(trace, zero) else diagnose_shards(trace, facts, zero)
    if cached_rows(trace)[unwritten].mean() >= 0.9:
        # Only who tells its ranks can have lost shards of the steps that first computed these rows.
        return shards if shards and facts.tp_size else _cached(trace, facts, unwritten)
    if shards is not None:
        return shards
    if shape.is_prompt or _are_nearly_the_prompts(trace, unwritten):
        return _whole_prompt(trace, facts, shape)
    if facts.disagg is not False and (seam := _after_prompt(trace, unwritten)):
        return _seam(trace, facts, seam)
    nobody = computed_nowhere(trace) & ~prompt_rows(trace)
    if facts.disagg is not False and nobody[unwritten].mean() >= 0.9:
        return _outputs_of_nobody(trace, int(nobody.sum()))
    if shape.is_output:
        return _whole_output(trace, facts, shape)
    if facts.draft and facts.overlap is not False and _is_verified(trace, unwritten):
        return _verified(trace, unwritten)
    if (dropped := _from_prompts_on(trace, facts, unwritten)) is not None:
        return dropped
    if (made := diagnose_made(trace, unwritten)) is not None:
        return made
    return _scattered(trace, facts, unwritten)


def _some_layers(trace: Trace, cells: NDArray[np.bool_]) -> Diagnosis:
    rows = counted(int(cells.any(axis=1).sum()), "row")
    because = [f"{counted(int(cells.sum()), 'cell')} of zeros in {rows} of which other layers are right"]
    return diagnosis("unknown", 0.2, because, trace, explains=int(cells.sum()))


def _left_over(trace: Trace, findings: tuple[Finding, ...], zero: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows [R] that their slots had before."""
    stale = [f for f in findings if f.rule == "stale-rows"]
    if (trace.rows.slot >= 0).any():
        return rows_of_findings(trace, [f for f in stale if f.evidence.get("former_owner")])
    named, prompt = rows_of_findings(trace, stale), prompt_rows(trace)
    if prompt[zero].all():
        return np.asarray(named & prompt)
    return np.asarray(named & ~prompt) if not prompt[zero].any() else named


def _are_nearly_the_prompts(trace: Trace, unwritten: NDArray[np.bool_]) -> bool:
    """Without slots: hardly a prompt row that is not known to be left over, and no output row that is."""
    prompt = prompt_rows(trace)
    if knows_workers(trace) or prompt.all() or unwritten[~prompt].any():
        return False
    return bool(unwritten[prompt].mean() >= 0.9)


def _cached(trace: Trace, facts: RunFacts, unwritten: NDArray[np.bool_]) -> Diagnosis:
    because = [
        f"{counted(int(unwritten.sum()), 'row')} of cached prefixes were never stored under their KV slots: "
        "KV was moved there without its rows",
    ]
    if facts.host_tier:
        because.append("a host tier was configured: restored KV gets other slots than it had")
    return diagnosis("stale-slot", 0.9 if facts.host_tier else 0.8, because, trace)


def _whole_prompt(trace: Trace, facts: RunFacts, shape: PromptShape) -> Diagnosis:
    because = [
        f"the zero rows are exactly the prompt, rows [0, prompt_len), in "
        f"{of_all(shape.prompts, shape.touched, 'affected request')}; the output rows are not zero",
    ]
    prompt = prompt_rows(trace) & zero_rows(trace)
    nowhere = computed_nowhere(trace) & prompt
    workers = workers_of(trace, prompt)
    if nowhere.any() and nowhere.sum() >= 0.9 * prompt.sum():
        because.append(
            f"these rows come from {' and '.join(workers)}, which says that it never computed them "
            "(step -1): the rows of the worker that ran the prompt were not merged in"
        )
        return diagnosis("no-merge", 0.95, because, trace)
    if facts.disagg is False or (workers and facts.overlap is False):
        because.append("the run was not both disaggregated and overlapped, so no known cause fits")
        return diagnosis("unknown", 0.3, because, trace)
    if workers and facts.disagg and facts.overlap:
        because += [
            f"these rows come from {' and '.join(workers)}, which says that it computed them: "
            "they were merged, but never stored in its host buffer",
            "prefill and decode were disaggregated and overlap scheduling was on, the only mode in which "
            "the prefill result carries a delayed copy that has to be finalized",
        ]
        return diagnosis("skip-finalize-prefill", 0.95, because, trace)
    because.append("the trace does not tell which worker the prompt rows came from")
    if facts.overlap is False:
        because.append("overlap scheduling was off, so no delayed copy can have been forgotten")
        return diagnosis("no-merge", 0.7, because, trace)
    return diagnosis("no-merge|skip-finalize-prefill", 0.7 if facts.disagg else 0.5, because, trace)


def _whole_output(trace: Trace, facts: RunFacts, shape: PromptShape) -> Diagnosis:
    because = [
        f"the zero rows are exactly the output, from prompt_len on, in "
        f"{of_all(shape.outputs, shape.touched, 'affected request')}; the prompt rows are not zero",
    ]
    if facts.draft is False:
        because.append("no draft was configured, so no verify result can have been dropped")
        return diagnosis("read-early", 0.4, because, trace)
    if facts.draft:
        because.append("output tokens were computed by verify steps of a run with a draft")
    return diagnosis("verify-dropped", 0.85 if facts.draft else 0.5, because, trace)


def _is_verified(trace: Trace, unwritten: NDArray[np.bool_]) -> bool:
    """Most rows of verify steps are unwritten, and hardly any other row is.

    Not where requests lost the rows of their last step and hold those of steps before.
    """
    verified = trace.rows.origin == Origin.VERIFY
    if verified[unwritten].mean() < 0.9 or unwritten[verified].mean() < 0.5:
        return False
    return not _lose_their_last_step(trace, verified, unwritten)


def _lose_their_last_step(trace: Trace, verified: NDArray[np.bool_], unwritten: NDArray[np.bool_]) -> bool:
    """Whether all requests that hold rows of verify steps lost those of their last step and no others."""
    partly = [
        rows
        for rows in map(trace.row_range, range(len(trace.requests)))
        if (verified[rows] & ~unwritten[rows]).any()
    ]
    return bool(partly) and all(
        np.array_equal(verified[rows] & unwritten[rows], trace.rows.step[rows] == trace.rows.step[rows][-1])
        for rows in partly
    )


def _verified(trace: Trace, unwritten: NDArray[np.bool_]) -> Diagnosis:
    verified = trace.rows.origin == Origin.VERIFY
    because = [
        f"{counted(int(unwritten[verified].sum()), 'row')} of the {int(verified.sum()):,} that verify steps "
        "computed were never stored; rows of prefill steps were"
    ]
    return diagnosis("verify-dropped", 0.8, because, trace)


def _after_prompt(trace: Trace, unwritten: NDArray[np.bool_]) -> list[slice]:
    """The unwritten rows of each request if they begin right after its prompt and right ones follow."""
    runs = []
    prompt = prompt_rows(trace)
    touched = [rows for rows in map(trace.row_range, range(len(trace.requests))) if unwritten[rows].any()]
    for rows in touched:
        marked = rows.start + np.flatnonzero(unwritten[rows])
        start, stop = int(marked[0]), int(marked[-1]) + 1
        is_run = stop - start == len(marked) and start > rows.start
        if is_run and prompt[start - 1] and not prompt[start]:
            runs.append(slice(start, stop))
    ends = {trace.row_range(request).stop for request in range(len(trace.requests))}
    followed = sum(run.stop not in ends for run in runs)
    return runs if len(runs) >= 0.8 * len(touched) and followed > 0.5 * len(touched) else []


def _seam(trace: Trace, facts: RunFacts, runs: list[slice]) -> Diagnosis:
    longest = max(run.stop - run.start for run in runs)
    because = [
        f"in {counted(len(runs), 'request')} the first rows after the prompt, {longest} at most, were never "
        "stored, and right rows follow",
        "at the seam of two workers' rows that means that one side began at another row than was asked for",
    ]
    return diagnosis("merge-misaligned", 0.85 if facts.disagg else 0.5, because, trace)


def _outputs_of_nobody(trace: Trace, rows: int) -> Diagnosis:
    because = [
        f"the zero rows are among the {counted(rows, 'output row')} that the worker which returned them "
        "never computed (step -1): rows of its part of the prompt, which it got from elsewhere",
        "at the seam of two workers' rows that means that one side began at another row than was asked for",
    ]
    return diagnosis("merge-misaligned", 0.9, because, trace)


def _everything(trace: Trace, facts: RunFacts, shape: PromptShape) -> Diagnosis:
    total = shape.touched + shape.clean
    because = [f"every row is zero in {of_all(shape.all_marked, total, 'request')}: nothing was ever stored"]
    causes = ["init-order"]
    if facts.ngram and facts.overlap and is_imported(trace):
        because.append(
            "an n-gram draft and overlapped scheduling were configured: that worker hands on neither the "
            "rows of its prefill steps nor those of its verify steps"
        )
        return diagnosis("verify-dropped", 0.85, because, trace)
    if facts.backend in EXPORTS_TOP_K:
        because.append(f"the MoE backend was {facts.backend}, which exports its top-k")
    else:
        causes.append("kernel-uncaptured")
    may_drop = facts.draft is not False and facts.overlap is not False and not facts.draft_layers
    if may_drop and (facts.draft or trace.run.engine.lower() != VLLM):
        causes.append("verify-dropped")
        if facts.draft:
            because.append("an n-gram draft was configured: with those the prefill result is dropped as well")
    if first_stage_has_no_moe(trace, facts):
        because.append(f"all MoE layers are in later ones of {facts.pp_size} pipeline stages")
        causes.append("pp-stage")
    return diagnosis("|".join(sorted(causes)), 0.7, because, trace)


def _ends_with_the_first_weights(trace: Trace, zero: NDArray[np.bool_]) -> bool:
    """All rows that older weights computed are zero, and none that newer ones did."""
    real, version = trace.rows.validity == Validity.REAL, trace.rows.weight_version
    written = real & ~zero
    return bool(written.any() and version[zero].max() < version[written].min())


def _of_first_weights(trace: Trace, zero: NDArray[np.bool_]) -> Diagnosis:
    because = [
        f"the {counted(int(zero.sum()), 'row')} that the first weights computed are all zero, and no row of "
        "newer ones is: layers that were built with these found a capturer, those before had none"
    ]
    return diagnosis("init-order", 0.85, because, trace)


def _scattered(trace: Trace, facts: RunFacts, unwritten: NDArray[np.bool_]) -> Diagnosis:
    touched = [
        rows
        for rows in map(trace.row_range, range(len(trace.requests)))
        if rows.stop > rows.start and unwritten[rows].any()
    ]
    if facts.overlap is not False and np.mean([unwritten[rows][-1] for rows in touched]) >= 0.9:
        ends = sum(bool(unwritten[rows][-1]) for rows in touched)
        because = [
            f"the zero rows stand at the end of {of_all(ends, len(touched), 'affected request')}",
            "rows of the last steps were collected before their copy had arrived",
        ]
        return diagnosis("read-early", 0.8 if facts.overlap else 0.5, because, trace)
    because = [
        f"{counted(int(unwritten.sum()), 'zero row')} in {counted(len(touched), 'request')}, no pattern"
    ]
    return diagnosis("unknown", 0.2, because, trace)


def _from_prompts_on(trace: Trace, facts: RunFacts, unwritten: NDArray[np.bool_]) -> Diagnosis | None:
    """Without steps: most output rows, the first ones with them, and no prompt row."""
    prompt = prompt_rows(trace)
    if knows_workers(trace) or facts.draft is False or unwritten[prompt].any():
        return None
    ranges = map(trace.row_range, range(len(trace.requests)))
    outputs = [unwritten[rows][~prompt[rows]] for rows in ranges if unwritten[rows].any()]
    long = [own for own in outputs if len(own) >= _FEWEST_OUTPUTS]
    if not long or np.mean([own[0] for own in outputs]) < 0.9 or np.mean(np.concatenate(long)) < 0.5:
        return None
    because = [
        f"{percent(float(np.mean(np.concatenate(outputs))))} of the output rows of "
        f"{counted(len(outputs), 'request')} were never stored, the first ones with them, and all prompt "
        "rows were: they are zero, or rows of other requests"
    ]
    return diagnosis("verify-dropped", 0.8 if facts.draft else 0.5, because, trace)
