"""A baseline where the weights changed on the way: every row under the weights that first computed it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.commands._record import request_record
from moeinspect.commands._run import check_fingerprint, load
from moeinspect.errors import InputError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.records import PromptRequest, RequestKey
from moeinspect.trace.schema import RequestRecord, Trace

if TYPE_CHECKING:
    from moeinspect.runtime.engine import LocalRuntime


@dataclass(frozen=True, slots=True)
class Weights:
    """One set of weights that served: its place in `/weight_versions`, and the checkpoint it is in."""

    version: int
    model: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Span:
    """Rows [`start`, `stop`) of a request, which `version` computed first."""

    version: int
    start: int
    stop: int


def served_weights(trace: Trace) -> list[Weights]:
    """All weights of a run in the order in which they served; one if they never changed.

    Raises:
        InputError: the trace does not tell them.
    """
    config = trace.run.run_config
    updates: Any = config.get("weight_updates", [])
    fingerprints: Any = config.get("weight_fingerprints", [trace.model.fingerprint])
    if not (
        isinstance(updates, list)
        and all(_is_update(update) for update in updates)
        and isinstance(fingerprints, list)
        and len(fingerprints) == len(updates) + 1
        and all(isinstance(fingerprint, str) for fingerprint in fingerprints)
    ):
        raise InputError(
            f"{trace.path}: its run_config does not tell usable weight_updates and weight_fingerprints",
            "give diff a baseline as second trace",
        )
    models = [str(config.get("model")), *(model for _, model in updates)]
    return [Weights(i, *one) for i, one in enumerate(zip(models, fingerprints, strict=True))]


def spans_of(trace: Trace, position: int) -> list[Span]:
    """Which weights computed which rows of request number `position`, in order, for every token that was fed.

    Rows that the trace lacks are counted to the span before them.
    """
    requests = trace.requests
    fed = int(requests.prompt_len[position]) + max(0, int(requests.output_len[position]) - 1)
    recorded = trace.rows.weight_version[trace.row_range(position)].astype(np.int64)[:fed]
    start = int(requests.start_pos[position])
    first = int(recorded[0]) if len(recorded) else int(requests.weight_version[position])
    last = int(recorded[-1]) if len(recorded) else first
    versions = np.full(fed, last)
    versions[:start] = first
    versions[start : start + len(recorded)] = recorded[: max(0, fed - start)]
    versions = np.maximum.accumulate(versions)
    edges = [0, *(np.flatnonzero(np.diff(versions)) + 1).tolist(), fed]
    return [Span(int(versions[a]), a, b) for a, b in pairwise(edges) if a < b]


def part_of(request: PromptRequest, tokens: Sequence[int], span: Span) -> PromptRequest:
    """The run in which the weights of `span` compute its rows and sample the tokens that they sampled.

    What was there before them is their prompt, the outputs of older weights included. `request` is the
    whole request, `tokens` are its prompt and output.
    """
    prompt_len, last = len(request.prompt_ids), len(tokens) - 1
    first_new = max(prompt_len, span.start + 1)
    count = max(0, min(span.stop, last) - first_new + 1)
    known = first_new if count else span.stop
    return replace(
        request,
        prompt_ids=tuple(int(token) for token in tokens[:known]),
        max_new_tokens=count,
        output_start=max(0, known - prompt_len),
    )


def versioned_records(
    trace: Trace, requests: Sequence[PromptRequest], base: Weights, config: RunConfig
) -> Callable[[LocalRuntime], Iterator[RequestRecord]]:
    """What `_run.record` calls with the runtime of the weights `base` to get the requests' records."""
    position_of = {
        (str(name), int(sample)): position
        for position, (name, sample) in enumerate(zip(trace.requests.id, trace.requests.sample, strict=True))
    }
    spans = {request.key: spans_of(trace, position_of[request.key]) for request in requests}

    def part_requests(version: int) -> list[PromptRequest]:
        return [
            part_of(request, trace.tokens_of(position_of[request.key]).tolist(), span)
            for request in requests
            for span in spans[request.key]
            if span.version == version
        ]

    def records(runtime: LocalRuntime) -> Iterator[RequestRecord]:
        parts: dict[RequestKey, dict[int, RequestRecord]] = {request.key: {} for request in requests}

        def run(runtime: LocalRuntime, version: int) -> None:
            for finished in runtime.generate(part_requests(version)):
                parts[finished.key][version] = request_record(finished)

        used = {span.version for of_request in spans.values() for span in of_request}
        for weights in served_weights(trace):
            if weights.version in used and weights != base:
                with load(replace(config, model=weights.model)) as other:
                    check_fingerprint(weights.model, other.model.fingerprint, weights.fingerprint, trace.path)
                    run(other, weights.version)
        run(runtime, base.version)  # the last one, since its capturer is the process's when it starts
        for request in requests:
            yield join_spans(
                request, [(span, parts[request.key][span.version]) for span in spans[request.key]]
            )

    return records


def first_used(trace: Trace, requests: Iterable[PromptRequest]) -> Weights:
    """The first of the weights that computed a row of `requests`.

    Raises:
        InputError: a row names weights that the run does not.
    """
    asked = {request.key for request in requests}
    used = {
        span.version
        for position, key in enumerate(
            zip(trace.requests.id.tolist(), trace.requests.sample.tolist(), strict=True)
        )
        if key in asked
        for span in spans_of(trace, position)
    }
    weights = served_weights(trace)
    if max(used) >= len(weights):
        raise InputError(f"{trace.path}: weight_version {max(used)} is none of those in its run_config")
    return weights[min(used)]


def join_spans(request: PromptRequest, parts: Sequence[tuple[Span, RequestRecord]]) -> RequestRecord:
    """One record of the rows of each span and the tokens that its weights sampled."""

    def rows(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(record, name)[span.start : span.stop] for span, record in parts])

    def optional_rows(name: str) -> NDArray[Any] | None:
        return None if any(getattr(record, name) is None for _, record in parts) else rows(name)

    last = parts[-1][1]
    return replace(
        last,
        prompt_ids=np.asarray(request.prompt_ids, dtype=np.int32),
        output_ids=np.concatenate([record.output_ids for _, record in parts]),
        expert_ids=rows("expert_ids"),
        validity=rows("validity"),
        origin=rows("origin"),
        worker=rows("worker"),
        step=rows("step"),
        slot=rows("slot"),
        row_weight_version=np.concatenate(
            [np.full(span.stop - span.start, span.version, dtype=np.uint16) for span, _ in parts]
        ),
        weights=optional_rows("weights"),
        margin=optional_rows("margin"),
        weight_version=parts[0][0].version,
        num_weight_versions=len(parts),
    )


def _is_update(value: object) -> bool:
    match value:
        case [int(step), str()]:
            return not isinstance(step, bool)
    return False
