"""Where in its requests a trace's wrong rows stand, and which worker says that it computed them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.facts import knows_workers
from moeinspect.trace.schema import Trace, Validity


@dataclass(frozen=True, slots=True)
class PromptShape:
    """How marked rows sit between prompt and output, over the requests that have both kinds.

    `whole_prompt` counts requests whose prompt rows are all marked and whose output rows all are not,
    `whole_output` the mirror image, `everything` requests marked from end to end, `other` the rest of
    those with a marked row, `clean` those without.
    """

    whole_prompt: int = 0
    whole_output: int = 0
    everything: int = 0
    other: int = 0
    clean: int = 0

    @property
    def touched(self) -> int:
        """Requests with a marked row."""
        return self.whole_prompt + self.whole_output + self.everything + self.other


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


def zero_rows(trace: Trace) -> NDArray[np.bool_]:
    """Real rows [R] that hold nothing but zeros in every MoE layer that has to be captured."""
    checked = [
        place
        for place, layer in enumerate(trace.axis_layers())
        if int(layer) in trace.model.moe_layers and int(layer) not in trace.model.capture_exempt_layers
    ]
    if trace.rows.expert_ids.shape[2] < 2 or not checked:
        return np.zeros(len(trace.rows), dtype=bool)
    zero = ~trace.rows.expert_ids[:, checked].any(axis=(1, 2))
    return np.asarray(zero & (trace.rows.validity == Validity.REAL))


def prompt_shape(trace: Trace, marked: NDArray[np.bool_]) -> PromptShape:
    """How the marked rows [R] sit between prompt and output."""
    prompt = prompt_rows(trace)
    counts = dict.fromkeys(("whole_prompt", "whole_output", "everything", "other", "clean"), 0)
    for _, rows in _requests(trace):
        in_prompt, in_output = marked[rows][prompt[rows]], marked[rows][~prompt[rows]]
        counts[_shape_of(in_prompt, in_output)] += 1
    return PromptShape(**counts)


def _shape_of(in_prompt: NDArray[np.bool_], in_output: NDArray[np.bool_]) -> str:
    if not in_prompt.any() and not in_output.any():
        return "clean"
    if in_prompt.all() and in_output.all():
        # With a single output token no output row exists: the prompt is all there is to see.
        return "everything" if len(in_output) and len(in_prompt) else "whole_prompt"
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
    names = trace.worker_names
    return tuple(names[n] if n < len(names) else f"worker {n}" for n in numbers)


def _requests(trace: Trace) -> Iterator[tuple[int, slice]]:
    for request in range(len(trace.requests)):
        rows = trace.row_range(request)
        if rows.stop > rows.start:
            yield request, rows
