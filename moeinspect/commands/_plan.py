"""From the options of a run to what `_run.record` runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from moeinspect.commands._binding import Invocation
from moeinspect.commands._later import refuse_later_run, refuse_later_values
from moeinspect.commands._launch import check_world
from moeinspect.commands._options import CommonOptions
from moeinspect.commands._prompts import PromptLine, read_prompts, to_requests
from moeinspect.commands._run import Run
from moeinspect.commands._run_options import LaterRunOptions, RunOptions
from moeinspect.console import Console
from moeinspect.errors import InputError, UsageError
from moeinspect.runtime.builtin_names import BUILTIN_PREFIX, NGRAM
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.records import PromptRequest
from moeinspect.runtime.resolve import OWN_PROMPTS, resolve
from moeinspect.runtime.topk.names import check_backend_name

if TYPE_CHECKING:
    from moeinspect.runtime.engine import LocalRuntime


_FIELDS = {"weight_update": "weight_updates"}
"""Fields of `RunConfig` that are named otherwise than their options."""


@dataclass(frozen=True, slots=True)
class RunArguments:
    """Everything that `capture` and `disagg-sim` were given about the run."""

    model: str
    run: RunOptions
    later: LaterRunOptions
    common: CommonOptions


def plan_run(
    arguments: RunArguments, call: Invocation, *, label: str, suffix: str = "", disagg: bool = False
) -> Run:
    """Checks everything that can be checked without the model.

    `suffix` goes into a derived name of the output; `disagg` is the run of `disagg-sim`.

    Raises:
        UsageError: an option of a later version, or options that contradict each other.
        InputError: the prompts cannot be read.
    """
    options = arguments.run
    refuse_later_run(arguments.later)
    refuse_later_values(options)
    check_backend_name(options.backend)
    if "" in options.stop:
        raise UsageError("--stop: the text is empty", "give at least one character")
    if options.prompts is not None and options.traffic:
        raise UsageError("--prompts and --traffic contradict each other", "leave one of them out")
    config, notes = resolve(_config(arguments, disagg), _explicit_fields(call, disagg))
    for note in notes:
        _announce(note, call.console)
    check_world(config, call.launcher)
    prompts = None if options.prompts is None else read_prompts(options.prompts, call.console)
    return Run(
        label=label,
        config=config,
        output=_output(arguments, config.model, suffix),
        force=arguments.common.force,
        make_requests=_request_maker(prompts, options),
        prompts=None if options.prompts in (None, "-") else str(Path(options.prompts).resolve()),
        launcher=call.launcher,
    )


def derived_output(model: str, suffix: str) -> Path:
    """Name of the trace where -o names none: the model's, in the current folder."""
    name = (
        model.removeprefix(BUILTIN_PREFIX) if model.startswith(BUILTIN_PREFIX) else Path(model).resolve().name
    )
    return Path(f"{name or 'model'}{suffix}.h5")


def absolute_model(model: str) -> str:
    """A checkpoint folder by its absolute path, so that a later `diff` finds it from anywhere."""
    return model if model.startswith(BUILTIN_PREFIX) else str(Path(model).resolve())


def _config(arguments: RunArguments, disagg: bool) -> RunConfig:
    options = arguments.run
    shared = {field.name for field in fields(RunConfig)} & {field.name for field in fields(RunOptions)}
    values = {name: getattr(options, name) for name in shared}
    values |= {
        "model": absolute_model(arguments.model),
        "draft": _draft(options.draft),
        "disagg": options.disagg or disagg,
        "transfer": options.transfer.value,
        "dtype": options.dtype.value,
        "stop": tuple(dict.fromkeys(options.stop)),
        "weight_updates": tuple(map(weight_update, options.weight_update)),
        "traffic": tuple(dict.fromkeys(options.traffic)),
        "faults": tuple(dict.fromkeys(options.fault)),
    }
    return RunConfig(**values)


def _draft(draft: str) -> str | None:
    if draft == "none":
        return None
    return draft if draft == NGRAM else absolute_model(draft)


def weight_update(text: str) -> tuple[int, str]:
    """Step and checkpoint of `STEP:MODEL`.

    Raises:
        UsageError: the text is no such pair.
    """
    step, colon, model = text.partition(":")
    if not (colon and step.isascii() and step.isdigit() and model):
        raise UsageError(
            f"--weight-update {text}: not a step and a model", "write such as 12:builtin:tiny-updated"
        )
    return int(step), absolute_model(model)


def _explicit_fields(call: Invocation, disagg: bool) -> frozenset[str]:
    given = frozenset(_FIELDS.get(name, name) for name in call.explicit)
    explicit = given & {OWN_PROMPTS, *(field.name for field in fields(RunConfig))}
    return explicit | {"disagg"} if disagg else explicit


def _output(arguments: RunArguments, model: str, suffix: str) -> Path:
    output = arguments.common.output or derived_output(model, suffix)
    prompts = arguments.run.prompts
    if prompts not in (None, "-") and output.exists() and output.samefile(Path(prompts or "")):
        raise UsageError(f"--output and --prompts are both {output}", "give the trace another name")
    return output


def _announce(note: str, console: Console) -> None:
    """Shows a note on the resolved options; warnings are marked by their first word."""
    text = note.removeprefix("warning: ")
    if text == note:
        console.note(note)
    else:
        console.warning(text)


def _request_maker(
    prompts: Sequence[PromptLine] | None, options: RunOptions
) -> Callable[[LocalRuntime], Sequence[PromptRequest]]:
    def make(runtime: LocalRuntime) -> Sequence[PromptRequest]:
        if prompts is None:
            if options.stop and not runtime.has_tokenizer:
                raise InputError(f"--stop: {runtime.config.model} has no tokenizer", "leave it out")
            return runtime.default_requests()
        return to_requests(
            prompts,
            runtime,
            max_new_tokens=options.max_new_tokens,
            ignore_eos=options.ignore_eos,
            stop=runtime.config.stop,
        )

    return make
