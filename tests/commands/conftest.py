"""Runs command lines in this process (torch is imported once) or in one of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import target_only_once

from moeinspect import cli

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Done:
    """A finished command."""

    status: int
    stdout: str
    stderr: str

    @property
    def error(self) -> str:
        """The one line of trouble; fails if there is more or less than that."""
        (line,) = [line for line in self.stderr.splitlines() if line.startswith("moeinspect: error: ")]
        return line.removeprefix("moeinspect: error: ")


@pytest.fixture
def run(capfd, tmp_path, monkeypatch):
    """Runs a command line in an empty folder, in this process; see `target_only_once`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(target_only_once.LocalRuntime, "generate", target_only_once.generate)

    def run(*argv: object) -> Done:
        capfd.readouterr()
        status = cli.main([str(arg) for arg in argv])
        return Done(status, *capfd.readouterr())

    return run


@pytest.fixture
def prompts(tmp_path):
    """Writes a prompts file from dicts and returns its path."""

    def write(*lines: dict, name: str = "prompts.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return write


class Spawned:
    """A command in a session of its own, so that everything it starts can be found and ended."""

    def __init__(self, argv: Sequence[object], cwd: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "moeinspect", *map(str, argv)],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # Whoever runs the tests may ignore Ctrl-C, as a shell's background job does.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def signal_all(self, number: signal.Signals) -> None:
        """What Ctrl-C does on a terminal: the signal goes to the whole foreground group."""
        os.killpg(self.process.pid, number)

    def wait(self, timeout: float = 180) -> int:
        """Waits for the exit of the command itself and returns its status."""
        return self.process.wait(timeout=timeout)

    def finish(self, timeout: float = 180) -> Done:
        """Waits for the end of the command."""
        stdout, stderr = self.process.communicate(timeout=timeout)
        return Done(self.process.returncode, stdout, stderr)

    def alive(self) -> list[int]:
        """Processes of the session that still run; zombies have ended."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            state, session = fields[0], int(fields[3])
            if session == self.process.pid and state not in "ZX":
                found.append(int(entry.name))
        return found


@pytest.fixture
def spawn(tmp_path):
    """Starts a command line in a process of its own, in an empty folder; ends what is left of it."""
    started = []

    def start(*argv: object) -> Spawned:
        started.append(Spawned(argv, tmp_path))
        return started[-1]

    yield start
    for command in started:
        for pid in command.alive():
            os.kill(pid, signal.SIGKILL)
        command.process.wait()


def eventually(condition, timeout: float = 120.0) -> bool:
    """Whether `condition()` comes true in time."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture(name="eventually")
def eventually_fixture():
    """`eventually(condition, timeout)`: waits until something is so."""
    return eventually
