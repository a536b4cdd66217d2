"""What a trace says of its requests: which rows they should have, and who did not ask for any."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.trace.schema import Origin, Requests, Trace

LOCAL = "local"
"""The engine of traces that the local runtime wrote."""


def fed_rows(requests: Requests) -> NDArray[np.int64]:
    """Tokens of each request [N] that were fed from `start_pos` on: one row stands for each.

    The last sampled token was never fed; where none was sampled, the last prompt token was.
    """
    tokens = requests.prompt_len.astype(np.int64) + requests.output_len
    fed = tokens - (requests.output_len > 0) - requests.start_pos
    return np.maximum(0, np.asarray(fed, dtype=np.int64))


def sampled_nothing(requests: Requests) -> NDArray[np.bool_]:
    """Requests [N] that computed their prompt and sampled no token."""
    return np.asarray((requests.output_len == 0) & (requests.prompt_len > requests.start_pos))


def is_imported(trace: Trace) -> bool:
    """Whether another engine answered these requests, or an importer wrote the rows."""
    return trace.run.engine != LOCAL or bool((trace.rows.origin == Origin.IMPORTED).any())


def request_evidence(trace: Trace, request: int) -> dict[str, int]:
    """What a finding says of a request beside its id: `sample` and `dp_rank` where they are above 0."""
    columns = {"sample": trace.requests.sample, "dp_rank": trace.requests.dp_rank}
    return {name: int(values[request]) for name, values in columns.items() if values[request] > 0}


def not_opted_in(trace: Trace) -> NDArray[np.bool_]:
    """Requests [N] that `run_config` lists under `not_opted_in`, as [id, sample] each."""
    listed = trace.run.run_config.get("not_opted_in")
    if not isinstance(listed, list | tuple):
        return np.zeros(len(trace.requests), dtype=bool)
    keys = {(str(one[0]), int(one[1])) for one in listed if _is_key(one)}
    requests = trace.requests
    named = zip(requests.id.tolist(), requests.sample.tolist(), strict=True)
    return np.asarray([key in keys for key in named], dtype=bool)


def _is_key(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and type(value[1]) is int
