"""The pair in the package's own runtime: how many proposed tokens are accepted, and what text comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime
from moeinspect.runtime.records import FinishedRequest, PromptRequest
from training.prompts import Prompt, repeated_share


@dataclass(frozen=True, slots=True)
class Served:
    """A run: requests in the order of their prompts, and the texts they continued with."""

    requests: Sequence[FinishedRequest]
    texts: Sequence[str]


def serve(pair: Path, prompts: Sequence[Prompt], num_new: int, temperature: float) -> Served:
    """Runs the prompts with four proposed tokens a step."""
    config = RunConfig(
        model=str(pair / "target"),
        draft=str(pair / "draft"),
        temperature=temperature,
        max_new_tokens=num_new,
    )
    asked = [PromptRequest(prompt.id, tuple(prompt.ids), num_new) for prompt in prompts]
    with LocalRuntime(config) as runtime:
        ended = {request.id: request for request in runtime.generate(asked)}
        requests = [ended[prompt.id] for prompt in prompts]
        return Served(requests, [runtime.decode(request.output_ids.tolist()) for request in requests])


def served_figures(served: Served) -> dict[str, Any]:
    """Accepted share of proposals, tokens won a verification, repeated 8-grams, over all requests."""
    drafted = sum(request.num_drafted for request in served.requests)
    accepted = sum(request.num_accepted for request in served.requests)
    repeated = [repeated_share(request.output_ids.tolist()) for request in served.requests]
    return {
        "requests": len(served.requests),
        "new_tokens": sum(len(request.output_ids) for request in served.requests),
        "rows": sum(len(request.expert_ids) for request in served.requests),
        "drafted": drafted,
        "accepted": accepted,
        "accepted_share": round(accepted / max(1, drafted), 4),
        "repeated_8_grams": round(sum(repeated) / len(repeated), 4),
        "requests_that_repeat": sum(share > 0 for share in repeated),
    }
