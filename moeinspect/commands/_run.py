"""One run of the local runtime into one trace: what `capture`, `disagg-sim` and `diff`'s baseline share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from moeinspect.commands._record import (
    event_columns,
    model_facts,
    request_record,
    run_info,
    weight_version_names,
)
from moeinspect.console import Console
from moeinspect.errors import EngineError, InputError
from moeinspect.interrupts import shielded
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.records import PromptRequest
from moeinspect.trace.schema import FinishReason, ModelFacts, RequestRecord

if TYPE_CHECKING:
    from moeinspect.runtime.engine import LocalRuntime
    from moeinspect.runtime.processes.launcher import Launcher
    from moeinspect.trace.writer import TraceWriter


@dataclass(frozen=True, slots=True)
class Run:
    """What to run and where its trace goes.

    `make_requests` gets the loaded runtime, since text prompts and built-in prompts need the model.
    `records` runs them in another way than one after the other in this runtime. `model` and
    `weight_versions` are what the trace says of the model, if not what the runtime knows. The trace of a
    `temporary` run is gone when the command ends. `prompts` is the file that the requests came from, if they
    came from one. `launcher` obtains worker processes that are not forked.
    """

    label: str
    config: RunConfig
    output: Path
    force: bool
    make_requests: Callable[[LocalRuntime], Sequence[PromptRequest]]
    baseline_of: str = ""
    expected_fingerprint: str | None = None
    temporary: bool = False
    records: Callable[[LocalRuntime], Iterator[RequestRecord]] | None = None
    model: ModelFacts | None = None
    weight_versions: tuple[str, ...] | None = None
    prompts: str | None = None
    launcher: Launcher | None = None


@dataclass(slots=True)
class RunSummary:
    """What a run recorded."""

    output: Path
    model: ModelFacts
    faults: tuple[str, ...]
    requests: int = 0
    rows: int = 0
    drafted: int = 0
    accepted: int = 0
    cached_tokens: int = 0
    retractions: int = 0
    aborted: int = 0

    def count(self, record: RequestRecord) -> None:
        """Takes in a request that has been written."""
        self.requests += 1
        self.rows += len(record.expert_ids)
        self.drafted += record.num_drafted
        self.accepted += record.num_accepted
        self.cached_tokens += record.cached_tokens
        self.retractions += record.num_retractions
        self.aborted += record.finish_reason == FinishReason.ABORT


def record(run: Run, console: Console) -> RunSummary:
    """Runs to the end and writes every request as it ends.

    The trace writer sees to what is left of a run that does not get there: no file after an error before
    the first request has ended, else a readable file with `complete` = 0.

    Raises:
        MoeinspectError: the model, a request, the output or the runtime is in trouble.
    """
    from moeinspect.trace.writer import TraceWriter, check_output_path

    check_output_path(run.output, run.force)
    with ExitStack() as stack:
        with console.busy(f"{run.label}  loading {run.config.model}"):
            runtime = stack.enter_context(load(run.config, run.launcher))
        requests = run.make_requests(runtime)
        runtime.check(requests)
        check_fingerprint(
            run.config.model, runtime.model.fingerprint, run.expected_fingerprint, run.baseline_of
        )
        model = model_facts(runtime.model)
        if run.model is not None:
            model = replace(model, name=run.model.name, fingerprint=run.model.fingerprint)
        info = run_info(
            run.config,
            runtime.config,
            machine_key=runtime.machine_key,
            requests=requests,
            baseline_of=run.baseline_of,
            weight_fingerprints=runtime.weight_fingerprints,
            hash_layers=runtime.model.hash_layers,
            prompts=run.prompts,
        )
        summary = RunSummary(run.output, model, runtime.config.faults)
        if not run.temporary:
            stack.enter_context(_tells_what_is_kept(summary, console))
        stack.enter_context(_names_lack_of_memory())
        with shielded():  # an interrupt finds the writer either not there or in the stack's care
            writer = stack.enter_context(
                TraceWriter(
                    run.output,
                    info,
                    model,
                    worker_names=runtime.worker_names,
                    weight_versions=run.weight_versions or weight_version_names(runtime.config),
                    with_weights=runtime.config.weights,
                    with_margins=runtime.config.margins,
                    with_events=True,
                    force=run.force,
                )
            )
        records = run.records or (lambda runtime: map(request_record, runtime.generate(requests)))
        with console.progress(run.label, len(requests)) as bar:
            for ended in records(runtime):
                with shielded():
                    writer.append(ended)
                    _append_events(runtime, writer)
                    summary.count(ended)
                bar.advance(1, len(ended.prompt_ids) + len(ended.output_ids))
            with shielded():
                _append_events(runtime, writer)
    return summary


def load(config: RunConfig, launcher: Launcher | None = None) -> LocalRuntime:
    """The runtime with its models; worker processes are forked if there is no launcher."""
    from moeinspect.runtime.engine import LocalRuntime  # torch takes seconds: only for a run

    return LocalRuntime(config, launcher=launcher)


@contextmanager
def _names_lack_of_memory() -> Iterator[None]:
    """Torch reports it as a RuntimeError that reads like a bug."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise EngineError(
                "there is not enough memory for this run",
                "lower --num-kv-slots, --host-kv-slots or --max-running-requests",
            ) from error
        raise


@contextmanager
def _tells_what_is_kept(summary: RunSummary, console: Console) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, EngineError):
        if summary.requests:
            console.note(f"{summary.output} holds the requests that had ended: {summary.requests}")
        raise


def check_fingerprint(model: str, found: str, expected: str | None, recorded_in: str) -> None:
    """Raises InputError if `model` is not, or no longer, the one that a trace was recorded with."""
    if expected not in (None, found):
        raise InputError(
            f"{model}: not the model that {recorded_in} was recorded with (fingerprint {found}, in the trace "
            f"{expected})",
            "put the old weights back or record the trace again",
        )


def _append_events(runtime: LocalRuntime, writer: TraceWriter) -> None:
    events = runtime.drain_events()
    if events:
        writer.append_events(event_columns(events))
