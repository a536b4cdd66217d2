"""Streams, colours and quiet, with and without a terminal."""

import io
import os

import pytest

from moeinspect.console import Console
from moeinspect.errors import OutputError
from moeinspect.printable import printable


class Terminal(io.StringIO):
    def isatty(self):
        return True


def console(*, terminal=False, environ=None, **settings):
    stream = Terminal if terminal else io.StringIO
    made = Console(io.StringIO(), stream(), stream(), environ or {})
    made.configure(**{"color": "auto", "quiet": False, "verbosity": 0, **settings})
    return made


@pytest.mark.parametrize(
    ("terminal", "environ", "choice", "colored"),
    [
        (True, {}, "auto", True),
        (False, {}, "auto", False),
        (True, {"NO_COLOR": "1"}, "auto", False),
        (True, {"NO_COLOR": ""}, "auto", True),
        (True, {"TERM": "dumb"}, "auto", False),
        (False, {"FORCE_COLOR": "1"}, "auto", True),
        (False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, "auto", False),
        (False, {"GITHUB_ACTIONS": "true"}, "auto", False),
        (True, {"NO_COLOR": "1"}, "always", True),
        (True, {"FORCE_COLOR": "1"}, "never", False),
    ],
)
def test_colour_is_what_was_asked_for(terminal, environ, choice, colored):
    made = console(terminal=terminal, environ=environ, color=choice)
    assert made.color(made.stdout) is colored
    made.error("x")
    assert ("\x1b[" in made.stderr.getvalue()) is colored


def test_messages_go_to_stderr_and_results_to_stdout():
    made = console()
    made.result("result")
    made.note("note")
    made.warning("look")
    made.next_command("moeinspect diff a.h5")
    made.detail("only with -v")
    assert made.stdout.getvalue() == "result\n"
    assert made.stderr.getvalue() == "note\nwarning: look\nNext: moeinspect diff a.h5\n"


def test_quiet_leaves_only_results_and_errors():
    made = console(quiet=True, verbosity=1)
    made.result("result")
    made.note("note")
    made.warning("look")
    made.detail("more")
    made.next_command("x")
    made.error("broken")
    assert made.stdout.getvalue() == "result\n"
    assert made.stderr.getvalue() == "moeinspect: error: broken\n"


def test_verbose_shows_details():
    made = console(verbosity=1)
    made.detail("more")
    assert made.stderr.getvalue() == "more\n"


def test_without_a_terminal_there_is_no_progress_and_no_width():
    made = console()
    with made.progress("capture", 2) as bar:
        bar.advance(1, 10)
    assert made.stderr.getvalue() == ""
    assert made.result_width is None


def test_on_a_terminal_progress_tells_requests_and_tokens_and_goes_away():
    made = console(terminal=True, environ={"TERM": "xterm"})
    with made.progress("capture", 2) as bar:
        bar.advance(1, 1234)
    written = made.stderr.getvalue()
    assert "1/2" in written
    assert "1,234 tokens" in written
    assert written.endswith("\x1b[2K")
    assert made.stdout.getvalue() == ""


def test_on_a_terminal_waiting_is_shown_and_goes_away():
    made = console(terminal=True, environ={"TERM": "xterm"})
    with made.busy("loading [model]"):
        pass
    assert "loading [model]" in made.stderr.getvalue()
    assert made.stderr.getvalue().endswith("\x1b[2K")
    piped = console()
    with piped.busy("loading"):
        pass
    assert piped.stderr.getvalue() == ""


def test_quiet_draws_no_progress_on_a_terminal():
    made = console(terminal=True, quiet=True)
    with made.progress("capture", 2) as bar:
        bar.advance(1, 1)
    assert made.stderr.getvalue() == ""


def test_control_characters_of_the_users_data_do_not_reach_the_terminal():
    assert printable("a\x1b[31mb\n\u202ec\u00e4") == "a\\x1b[31mb\\n\\u202ec\u00e4"
    made = console(color="never")
    made.error("file \x1b]0;title\x07")
    assert "\x1b" not in made.stderr.getvalue()


def test_a_reader_that_went_away_does_not_stop_the_command():
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as stdout:
        made = Console(io.StringIO(), stdout, io.StringIO(), {})
        made.result("x" * 100_000)
        made.result("more")


def test_a_full_disk_is_not_swallowed():
    with open("/dev/full", "w") as stdout:  # noqa: PTH123
        made = Console(io.StringIO(), stdout, io.StringIO(), {})
        with pytest.raises(OutputError, match="to stdout: No space left"):
            made.result("x" * 100_000)
        made.discard_stdout()
