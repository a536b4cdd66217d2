"""The entry point: parses the command line, runs a command and turns whatever happens into an exit status."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

import typer
import typer.main
from typer.exceptions import TyperException

from moeinspect.commands._binding import LAUNCHER, Command
from moeinspect.commands._launch import is_for_another_rank, launched, work_for_rank_0
from moeinspect.commands._options import Version
from moeinspect.commands.bisect import bisect
from moeinspect.commands.capture import capture
from moeinspect.commands.check_duplicates import check_duplicates
from moeinspect.commands.diff import diff
from moeinspect.commands.disagg_sim import disagg_sim
from moeinspect.commands.explain import explain
from moeinspect.console import Console
from moeinspect.errors import MoeinspectError, WorkerLostError
from moeinspect.exit_status import ExitStatus
from moeinspect.interrupts import handled, was_interrupted

PROGRAM = "moeinspect"
DEBUG_VARIABLE = "MOEINSPECT_DEBUG"

app = typer.Typer(
    name=PROGRAM,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback()
def root(context: typer.Context, version: Version = False) -> None:
    """Find out whether the routed experts that a Mixture-of-Experts runtime returns are the right ones."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(ExitStatus.TROUBLE)


for _name, _function in (
    ("capture", capture),
    ("diff", diff),
    ("check-duplicates", check_duplicates),
    ("disagg-sim", disagg_sim),
    ("bisect", bisect),
    ("explain", explain),
):
    app.command(_name, cls=Command)(_function)


def entry() -> NoReturn:
    """The process: runs `main`, or works for the process that does, and ends with its exit status."""
    status = _start()
    if status == ExitStatus.INTERRUPTED:
        # Everything is closed by now. An interpreter that holds torch takes a second to take itself down,
        # and somebody is waiting for the prompt. What libraries clean up at an exit is little and has to
        # be: multiprocessing would leave a temporary folder behind.
        atexit._run_exitfuncs()
        os._exit(status)
    sys.exit(status)


def _start() -> int:
    console = Console.for_process()
    return int(_guarded(lambda: _work() if is_for_another_rank() else ExitStatus(main()), console))


def _work() -> ExitStatus:
    work_for_rank_0()
    return ExitStatus.OK


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (the process's without `argv`) and returns its exit status."""
    console = Console.for_process()
    with handled():
        return int(_guarded(lambda: _run(sys.argv[1:] if argv is None else argv, console), console))


def _run(argv: Sequence[str], console: Console) -> ExitStatus:
    command = typer.main.get_command(app)
    with launched() as launcher, command.make_context(PROGRAM, list(argv), obj=console) as context:
        context.meta[LAUNCHER] = launcher
        status = ExitStatus(command.invoke(context))
    console.flush()
    return status


def _guarded(run: Callable[[], ExitStatus], console: Console) -> ExitStatus:
    """Every way in which `run` can end, as an exit status and at most one line on stderr.

    An uncaught exception would exit with 1, which reads as "differences found".
    """
    try:
        return run()
    except BrokenPipeError:
        # Commands never let one through, so it was --help or --version into a pipe that closed.
        console.discard_stdout()
        return ExitStatus.OK
    except typer.Exit as leave:
        return ExitStatus(leave.exit_code)
    except BaseException as error:
        if lost := _lost_worker(error):
            return _trouble(lost, console)
        if was_interrupted() or isinstance(error, (KeyboardInterrupt, typer.Abort)):
            console.error("interrupted")
            return ExitStatus.INTERRUPTED
        return _trouble(error, console)


def _lost_worker(error: BaseException | None) -> WorkerLostError | None:
    """What an interrupt, and what followed from it, is a consequence of, if it is that."""
    while error is not None and not isinstance(error, WorkerLostError):
        error = error.__context__
    return error


def _trouble(error: BaseException, console: Console) -> ExitStatus:
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error, file=console.stderr)
    if isinstance(error, MoeinspectError):
        console.error(str(error))
        return error.exit_status
    if isinstance(error, TyperException):
        console.error(_usage_message(error))
    elif isinstance(error, OSError):
        console.error(_os_message(error))
    else:
        kind = type(error).__name__
        console.error(f"{kind}: {error}; this is a bug, {DEBUG_VARIABLE}=1 shows where")
    return ExitStatus.TROUBLE


def _usage_message(error: TyperException) -> str:
    """A wrong command line in one line, with where to find the right one."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else PROGRAM
    message = " ".join(error.format_message().split()).replace(": Value error,", ":").rstrip(".")
    return f"{message}; try `{command} --help`"


def _os_message(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"
