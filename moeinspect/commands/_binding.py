"""Options declared once, in dataclasses, and bound to the commands that share them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, get_type_hints

import typer
from typer.core import TyperCommand

from moeinspect.commands._launch import check_command
from moeinspect.console import Console
from moeinspect.errors import EngineError
from moeinspect.exit_status import ExitStatus

if TYPE_CHECKING:
    from moeinspect.runtime.processes.joined import JoinedProcesses

ALIASES = {
    "--disable-overlap-schedule": "--no-overlap",
    "--speculative-num-draft-tokens": "--num-draft-tokens",
    "--speculative-eagle-topk": "--draft-topk",
}
"""SGLang's spellings, accepted and not shown."""

LAUNCHER = "moeinspect.launcher"
"""Where the context of a command line has the processes of its torchrun."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """How a command was called: its console, and the names of the parameters that the user typed.

    `launcher` has the other processes of the torchrun that the command was started by.
    """

    console: Console
    explicit: frozenset[str]
    launcher: JoinedProcesses | None = None


def bind(function: Callable[..., ExitStatus]) -> Callable[..., ExitStatus]:
    """Makes `function(call: Invocation, ...)` a command.

    A parameter that is annotated with a dataclass is replaced by one option per field of it, so that an
    option is declared in one place whatever number of commands take it. The dataclass with the console's
    options (`configure`) sets the console up before the command runs.
    """
    hints = get_type_hints(function, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}
    call_name = next(name for name, hint in hints.items() if hint is Invocation)
    del groups[call_name]

    def command(ctx: typer.Context, **values: Any) -> ExitStatus:  # noqa: ANN401
        console: Console = ctx.obj
        explicit = frozenset(name for name in values if _typed(ctx, name))
        launcher = ctx.meta.get(LAUNCHER)
        check_command(ctx.info_name, launcher)
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
            if configure := getattr(values[name], "configure", None):
                configure(console)
        try:
            return function(**{call_name: Invocation(console, explicit, launcher)}, **values)
        except BrokenPipeError as error:
            # The console swallows a reader of stdout that went away; this is a worker's pipe.
            raise EngineError("a worker process went away in the middle of the run") from error

    parameters = [inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in groups:
            parameters += _parameters_of(groups[parameter.name])
        elif parameter.name != call_name:
            hint = hints[parameter.name]
            parameters.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))
    update_wrapper(command, function)
    del command.__wrapped__  # type: ignore[attr-defined]  # typer would look through it
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _typed(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _parameters_of(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=_default(field), annotation=hints[field.name]
        )
        for field in fields(group)
    ]


def _default(field: Field[Any]) -> object:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is MISSING else field.default


class Command(TyperCommand):
    """A command whose help groups its options, and which knows SGLang's spellings."""

    default_panel = "Output"
    """Where `--help` itself stands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  # typer hides its type
        """Parses `args` after writing aliases out."""
        return super().parse_args(ctx, canonical(args))

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Writes one section of the help per `rich_help_panel`, arguments first."""
        sections: dict[str, list[tuple[str, str]]] = {}
        parameters = self.get_params(ctx)
        for parameter in sorted(parameters, key=lambda p: p.param_type_name != "argument"):
            record = parameter.get_help_record(ctx)
            if record is not None:
                name, text = record
                if parameter.param_type_name == "argument":
                    sections.setdefault("Arguments", []).append((name.partition(" <")[0], text))
                else:
                    panel = getattr(parameter, "rich_help_panel", None) or self.default_panel
                    sections.setdefault(panel, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def canonical(args: Sequence[str]) -> list[str]:
    """`args` with the aliases replaced, up to a `--`."""
    written: list[str] = []
    for position, arg in enumerate(args):
        if arg == "--":
            return written + list(args[position:])
        name, equals, value = arg.partition("=")
        written.append(ALIASES.get(name, name) + equals + value)
    return written
