"""The target-only run that `diff` makes when it is given one trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from moeinspect.commands._next import diff_command
from moeinspect.commands._run import Run, record
from moeinspect.commands._versions import first_used, versioned_records
from moeinspect.console import Console
from moeinspect.errors import InputError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.records import PromptRequest, RequestKey
from moeinspect.runtime.resolve import resolve
from moeinspect.trace.schema import Trace, Validity

SHOWN_PATH = "(target-only baseline)"
"""How a baseline that is not kept is named in reports."""

_SAME = ("model", "dtype", "device", "seed", "threads", "temperature", "top_p", "top_k")
"""Options of the trace's run that the baseline takes over."""


@contextmanager
def made_baseline(trace: Trace, keep: Path | None, force: bool, console: Console) -> Iterator[Trace]:
    """The baseline of `trace`, written to `keep` or to a file that is gone after the block.

    Raises:
        InputError: the trace is not the local runtime's, or its model is not the one on disk any more.
        OutputError: `keep` cannot be written.
    """
    from moeinspect.trace.reader import read_trace

    if len(trace.rows) and (trace.rows.validity == Validity.MISSING).all():
        raise InputError(
            f"{trace.path}: nothing to compare: no request asked for its routed experts",
            "capture again with return_routed_experts true",
        )
    config = baseline_config(trace)
    requests = baseline_requests(trace, console)
    with TemporaryDirectory(prefix="moeinspect-") as folder:
        output = keep or Path(folder) / "baseline.h5"
        run = Run(
            label="baseline",
            config=config,
            output=output,
            force=force,
            make_requests=lambda _runtime: requests,
            baseline_of=trace.path,
            expected_fingerprint=trace.model.fingerprint,
            temporary=keep is None,
        )
        record(_under_recorded_weights(run, trace, requests), console)
        baseline = read_trace(output)
        yield baseline if keep else replace(baseline, path=SHOWN_PATH)


def baseline_config(trace: Trace) -> RunConfig:
    """The options of the baseline: the trace's model, machine and sampling, everything else target-only."""
    if trace.run.engine != "local":
        made_with = "moeinspect capture MODEL --target-only --prompts FILE -o reference.h5"
        raise InputError(
            f"{trace.path}: recorded by {trace.run.engine}, so diff cannot make its baseline",
            f"make a reference with `{made_with}`, then `{diff_command(Path(trace.path), 'reference.h5')}`",
        )
    config = RunConfig(
        **_recorded(trace), target_only=True, weights=trace.rows.weights is not None, margins=True
    )
    return resolve(config, frozenset())[0]


def baseline_requests(trace: Trace, console: Console) -> list[PromptRequest]:
    """Each request of the trace again: its own prompt ids, as many output tokens as it had, no stops.

    What asked for no routed experts asks for none here. A request without an output token, because it
    wanted none or was aborted too early, computes its prompt.

    Raises:
        InputError: there is none.
    """
    seeds, not_opted_in = _request_seeds(trace), _not_opted_in(trace)
    requests = []
    for position in range(len(trace.requests)):
        request_id, sample = str(trace.requests.id[position]), int(trace.requests.sample[position])
        prompt_len = int(trace.requests.prompt_len[position])
        output_len = int(trace.requests.output_len[position])
        if not prompt_len:
            console.note(f"request {request_id!r} has no prompt token and is left out of the baseline")
            continue
        requests.append(
            PromptRequest(
                request_id,
                tuple(int(token) for token in trace.tokens_of(position)[:prompt_len]),
                output_len,
                seed=seeds.get(request_id),
                ignore_eos=True,
                sample=sample,
                return_routed_experts=(request_id, sample) not in not_opted_in,
            )
        )
    if not requests:
        raise InputError(f"{trace.path}: nothing to compare: no request had ended", "record it again")
    return requests


def _under_recorded_weights(run: Run, trace: Trace, requests: list[PromptRequest]) -> Run:
    """`run`, with every row computed by the weights that the trace names for it."""
    if len(trace.weight_versions) < 2:
        return run
    base = first_used(trace, requests)
    config = replace(run.config, model=base.model)
    return replace(
        run,
        config=config,
        expected_fingerprint=base.fingerprint,
        records=versioned_records(trace, requests, base, config),
        model=trace.model,
        weight_versions=trace.weight_versions,
    )


def _recorded(trace: Trace) -> dict[str, Any]:
    """The options that the baseline takes over, checked: a trace is a file from anywhere."""
    defaults = RunConfig()
    options = {}
    for name in _SAME:
        value = trace.run.run_config.get(name)
        expected = type(getattr(defaults, name))
        if isinstance(value, bool) or not isinstance(value, (int, float) if expected is float else expected):
            raise InputError(
                f"{trace.path}: its run_config does not tell a usable {name} ({value!r})",
                "give diff a baseline as second trace",
            )
        options[name] = value
    return options


def _request_seeds(trace: Trace) -> dict[str, int]:
    seeds: Any = trace.run.run_config.get("request_seeds", {})
    if not isinstance(seeds, dict) or not all(type(seed) is int for seed in seeds.values()):
        raise InputError(f"{trace.path}: request_seeds in its run_config are no seeds by id")
    return {str(key): seed for key, seed in seeds.items()}


def _not_opted_in(trace: Trace) -> set[RequestKey]:
    keys: Any = trace.run.run_config.get("not_opted_in", [])
    match keys:
        case [*keys] if all(_is_key(key) for key in keys):
            return {(request_id, sample) for request_id, sample in keys}
    raise InputError(f"{trace.path}: not_opted_in in its run_config is no list of ids and samples")


def _is_key(value: object) -> bool:
    match value:
        case [str(), int(sample)]:
            return not isinstance(sample, bool)
    return False
