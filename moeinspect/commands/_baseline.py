"""The target-only run that `diff` makes when it is given one trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from moeinspect.commands._next import diff_command
from moeinspect.commands._recorded import not_opted_in, recorded_options, request_seeds
from moeinspect.commands._run import Run, record
from moeinspect.commands._versions import first_used, versioned_records
from moeinspect.console import Console
from moeinspect.errors import InputError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.records import PromptRequest
from moeinspect.runtime.resolve import resolve
from moeinspect.trace.schema import Trace, Validity

SHOWN_PATH = "(target-only baseline)"
"""How a baseline that is not kept is named in reports."""

_SAME = ("model", "dtype", "device", "seed", "threads", "temperature", "top_p", "top_k")
"""Options of the trace's run that the baseline takes over."""

_GIVE_ONE = "give diff a baseline as second trace"


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
        **recorded_options(trace, _SAME, _GIVE_ONE),
        target_only=True,
        # Where rounding may turn places over, the weights of one side tell whether it did.
        weights=trace.rows.weights is not None or not trace.run.deterministic,
        margins=True,
    )
    return resolve(config, frozenset())[0]


def baseline_requests(trace: Trace, console: Console) -> list[PromptRequest]:
    """Each request of the trace again: its own prompt ids, as many output tokens as it had, no stops.

    What asked for no routed experts asks for none here. A request without an output token, because it
    wanted none or was aborted too early, computes its prompt.

    Raises:
        InputError: there is none.
    """
    seeds, without_rows = request_seeds(trace), not_opted_in(trace)
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
                return_routed_experts=(request_id, sample) not in without_rows,
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
