"""The requests of a trace as they were asked, to run them again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moeinspect.commands._baseline import baseline_requests
from moeinspect.commands._recorded import not_opted_in, request_seeds
from moeinspect.commands._request_groups import OF_THE_RUN, OPTIONS
from moeinspect.console import Console
from moeinspect.errors import InputError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.records import PromptRequest, RequestKey
from moeinspect.trace.schema import Trace


def requests_again(trace: Trace, config: RunConfig, console: Console) -> list[PromptRequest]:
    """The requests of the trace as they were asked, in the order in which they came.

    Those that had not ended when the trace did are not in it. A trace that does not tell what they asked
    for has them run to their recorded lengths.

    Raises:
        InputError: there is none, or `request_options` is none.
    """
    if OPTIONS not in trace.run.run_config:
        console.note(
            f"{trace.path} does not tell what its requests asked for: they run in the order in which they "
            "ended, to their recorded lengths, without stops and aborts"
        )
        return baseline_requests(trace, console)
    recorded = _Recorded(trace)
    requests, lost = [], 0
    for request_id, sample, asked in recorded.asked():
        position = recorded.position_of.get((request_id, sample))
        if position is None:
            lost += 1
            continue
        options = {name: asked.get(name, getattr(config, name)) for name in OF_THE_RUN}
        requests.append(recorded.request(position, asked, options))
    if lost:
        console.warning(f"{lost} of the run's requests had not ended, so {trace.path} does not hold them")
    if len(requests) != len(recorded.position_of):
        raise _unusable(trace)
    if not requests:
        raise InputError(f"{trace.path}: nothing to run again: no request had ended", "record it again")
    return requests


@dataclass(slots=True, init=False)
class _Recorded:
    """A trace's requests by key, with what the run's options say of them."""

    trace: Trace
    position_of: dict[RequestKey, int]
    seeds: dict[str, int]
    without_rows: set[RequestKey]

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        keys = zip(trace.requests.id.tolist(), trace.requests.sample.tolist(), strict=True)
        self.position_of = {key: position for position, key in enumerate(keys)}
        self.seeds = request_seeds(trace)
        self.without_rows = not_opted_in(trace)

    def asked(self) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
        """Id, sample and options of every request of the run."""
        groups = self.trace.run.run_config[OPTIONS]
        if not isinstance(groups, list) or not all(map(_is_group, groups)):
            raise _unusable(self.trace)
        for group in groups:
            for request_id in group["ids"]:
                for sample in range(group.get("n", 1)):
                    yield request_id, sample, group

    def request(self, position: int, asked: Mapping[str, Any], options: Mapping[str, Any]) -> PromptRequest:
        """One request again."""
        requests = self.trace.requests
        request_id, sample = str(requests.id[position]), int(requests.sample[position])
        prompt_len = int(requests.prompt_len[position])
        return PromptRequest(
            request_id,
            tuple(self.trace.tokens_of(position)[:prompt_len].tolist()),
            options["max_new_tokens"],
            seed=self.seeds.get(request_id),
            ignore_eos=options["ignore_eos"],
            sample=sample,
            stop=tuple(options["stop"]),
            stop_token_ids=tuple(asked.get("stop_token_ids", ())),
            return_routed_experts=(request_id, sample) not in self.without_rows,
            abort_after=asked.get("abort_after"),
        )


def _is_group(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    checks: dict[str, Any] = {
        "ids": _texts,
        "n": _count,
        "max_new_tokens": _count,
        "ignore_eos": lambda one: isinstance(one, bool),
        "stop": _texts,
        "stop_token_ids": lambda one: isinstance(one, list) and all(map(_count, one)),
        "abort_after": _count,
    }
    return "ids" in value and all(name in checks and checks[name](one) for name, one in value.items())


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _count(value: object) -> bool:
    return type(value) is int and value >= 0


def _unusable(trace: Trace) -> InputError:
    return InputError(
        f"{trace.path}: {OPTIONS} in its run_config are not what the requests asked for", "record it again"
    )
