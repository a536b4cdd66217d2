"""Where in its requests a trace's wrong rows stand, and which worker says that it computed them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.facts import knows_workers
from moeinspect.analysis.exempt import places_to_capture
from moeinspect.analysis.findings import Finding
from moeinspect.analysis.workers import worker_name
from moeinspect.trace.schema import Origin, Trace, Validity

_NEARLY_ALL = 0.9


@dataclass(frozen=True, slots=True)
class PromptShape:
    """How marked rows sit between prompt and output, in requests.

    `whole_prompt` counts requests whose prompt rows are all marked and whose output rows all are not,
    `whole_output` the mirror image, `everything` requests marked from end to end, `other` the rest of
    those with a marked row, `clean` those without. A request that is marked from end to end but has rows of
    one kind only, because nothing was fed back or the prompt was left out, is `only_prompt` or
    `only_output`: it may be either shape.
    """

    whole_prompt: int = 0
    whole_output: int = 0
    everything: int = 0
    only_prompt: int = 0
    only_output: int = 0
    other: int = 0
    clean: int = 0

    @property
    def touched(self) -> int:
        """Requests with a marked row."""
        return self.all_marked + self.whole_prompt + self.whole_output + self.other

    @property
    def all_marked(self) -> int:
        """Requests all of whose rows are marked."""
        return self.everything + self.only_prompt + self.only_output

    @property
    def prompts(self) -> int:
        """Requests whose prompt rows, and no others, are marked."""
        return self.whole_prompt + self.only_prompt

    @property
    def outputs(self) -> int:
        """Requests whose output rows, and no others, are marked."""
        return self.whole_output + self.only_output

    @property
    def is_everything(self) -> bool:
        """Nearly all requests are marked from end to end, prompts and outputs."""
        both = self.everything > 0 or (self.only_prompt > 0 and self.only_output > 0)
        return both and self.all_marked >= _NEARLY_ALL * (self.touched + self.clean)

    @property
    def is_only_prompts(self) -> bool:
        """Nearly all requests are marked from end to end, and have rows of their prompts only."""
        return self.only_prompt > 0 and self.only_prompt >= _NEARLY_ALL * (self.touched + self.clean)

    @property
    def is_prompt(self) -> bool:
        """Exactly the prompts are marked, in nearly all requests that are touched."""
        return self.prompts > 0 and self.prompts >= _NEARLY_ALL * self.touched

    @property
    def is_output(self) -> bool:
        """Exactly the outputs are marked, in nearly all requests that are touched."""
        return self.outputs > 0 and self.outputs >= _NEARLY_ALL * self.touched


def row_requests(trace: Trace) -> NDArray[np.int64]:
    """Request number of each row [R]."""
    numbers = np.full(len(trace.rows), -1, dtype=np.int64)
    for request in range(len(trace.requests)):
        numbers[trace.row_range(request)] = request
    return numbers


def prompt_rows(trace: Trace) -> NDArray[np.bool_]:
    """Which rows [R] are of prompt tokens."""
    prompt = np.zeros(len(trace.rows), dtype=bool)
    for request, rows in _requests(trace):
        start = rows.start
        end = start + int(trace.requests.prompt_len[request]) - int(trace.requests.start_pos[request])
        prompt[start : max(start, min(end, rows.stop))] = True
    return prompt


def cached_rows(trace: Trace) -> NDArray[np.bool_]:
    """Which rows [R] a prefix cache supplied, as the trace says."""
    cached = np.asarray(trace.rows.origin == Origin.PREFIX_CACHE)
    for request, rows in _requests(trace):
        count = int(trace.requests.cached_tokens[request]) - int(trace.requests.start_pos[request])
        cached[rows.start : rows.start + max(0, min(count, rows.stop - rows.start))] = True
    return cached


def rows_of_findings(trace: Trace, findings: Sequence[Finding]) -> NDArray[np.bool_]:
    """Rows [R] that findings of this trace name."""
    named = np.zeros(len(trace.rows), dtype=bool)
    for _, rows in named_rows(trace, findings):
        named[rows] = True
    return named


def cells_of_findings(trace: Trace, findings: Sequence[Finding]) -> NDArray[np.bool_]:
    """Cells [R, L] of the trace's own layer axis that findings of this trace name."""
    named = np.zeros(trace.rows.expert_ids.shape[:2], dtype=bool)
    place = {int(layer): number for number, layer in enumerate(trace.axis_layers())}
    for finding, rows in named_rows(trace, findings):
        named[rows, [place[layer] for layer in finding.layers if layer in place]] = True
    return named


def named_rows(trace: Trace, findings: Sequence[Finding]) -> Iterator[tuple[Finding, slice]]:
    """Findings of this trace that name rows, with the rows of the file."""
    requests = trace.requests
    numbers: dict[tuple[str, int], list[int]] = {}
    for number, key in enumerate(zip(requests.id.tolist(), requests.sample.tolist(), strict=True)):
        numbers.setdefault(key, []).append(number)
    for finding in findings:
        if finding.rows is None:
            continue
        for request in numbers.get((str(finding.request), int(finding.evidence.get("sample", 0))), ()):
            start, stop = trace.row_range(request).start, trace.row_range(request).stop
            yield finding, slice(start + finding.rows[0], min(stop, start + finding.rows[1]))


def requests_of_findings(trace: Trace, findings: Sequence[Finding]) -> NDArray[np.int64]:
    """Numbers of the requests [n] that findings of this trace name."""
    named = {(f.request, f.evidence.get("sample", 0)) for f in findings if f.request is not None}
    requests = trace.requests
    keys = zip(requests.id.tolist(), requests.sample.tolist(), strict=True)
    return np.asarray([number for number, key in enumerate(keys) if key in named], dtype=np.int64)


def zero_rows(trace: Trace) -> NDArray[np.bool_]:
    """Real rows [R] that hold nothing but zeros in every MoE layer that has to be captured."""
    checked = places_to_capture(trace)
    if trace.rows.expert_ids.shape[2] < 2 or not len(checked):
        return np.zeros(len(trace.rows), dtype=bool)
    zero = ~trace.rows.expert_ids[:, checked].any(axis=(1, 2))
    return np.asarray(zero & (trace.rows.validity == Validity.REAL))


def prompt_shape(trace: Trace, marked: NDArray[np.bool_]) -> PromptShape:
    """How the marked rows [R] sit between prompt and output, among those that are real.

    Rows that the producer declares missing, as of requests that did not ask for theirs, tell nothing.
    """
    prompt, real = prompt_rows(trace), trace.rows.validity == Validity.REAL
    counts = dict.fromkeys((field.name for field in fields(PromptShape)), 0)
    for _, rows in _requests(trace):
        if not real[rows].any():
            continue
        in_prompt, in_output = marked[rows][(prompt & real)[rows]], marked[rows][(~prompt & real)[rows]]
        counts[_shape_of(in_prompt, in_output)] += 1
    return PromptShape(**counts)


def _shape_of(in_prompt: NDArray[np.bool_], in_output: NDArray[np.bool_]) -> str:
    if not in_prompt.any() and not in_output.any():
        return "clean"
    if in_prompt.all() and in_output.all():
        if len(in_prompt) and len(in_output):
            return "everything"
        return "only_prompt" if len(in_prompt) else "only_output"
    if in_prompt.all() and not in_output.any():
        return "whole_prompt"
    if in_output.all() and not in_prompt.any():
        return "whole_output"
    return "other"


def computed_nowhere(trace: Trace) -> NDArray[np.bool_]:
    """Rows [R] of which their own worker says that it never computed them (step below 0)."""
    if not knows_workers(trace):
        return np.zeros(len(trace.rows), dtype=bool)
    return np.asarray(trace.rows.step < 0)


def workers_of(trace: Trace, rows: NDArray[np.bool_]) -> tuple[str, ...]:
    """Names of the workers that the rows [R] say they come from; none if the trace cannot know."""
    if not knows_workers(trace) or not rows.any():
        return ()
    numbers = np.unique(trace.rows.worker[rows])
    return tuple(worker_name(trace, int(number)) for number in numbers)


def _requests(trace: Trace) -> Iterator[tuple[int, slice]]:
    for request in range(len(trace.requests)):
        rows = trace.row_range(request)
        if rows.stop > rows.start:
            yield request, rows
