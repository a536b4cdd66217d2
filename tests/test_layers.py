"""Imports go one way only: cli -> commands -> {runtime -> kernels, engines -> trace, ...}.

Function-level imports and those under `TYPE_CHECKING` count like any other.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

PACKAGE = Path(__file__).parents[1] / "moeinspect"
NAME = "moeinspect"

BASE = {"errors", "exit_status", "printable", "__init__"}
"""What everybody may import."""

MAY_IMPORT = {
    "__init__": {"trace"},
    "__main__": {"cli"},
    "cli": {"commands", "console", "interrupts"},
    "console": {"progress"},
    "commands": {"runtime", "engines", "analysis", "report", "trace", "guide", "console", "interrupts"},
    "runtime": {"kernels"},
    "kernels": set(),
    "engines": {"trace"},
    "trace": set(),
    "analysis": {"trace"},
    "report": {"analysis", "trace", "guide"},
    "guide": set(),
    "errors": set(),
    "exit_status": set(),
    "printable": set(),
    "interrupts": set(),
    "progress": set(),
}
"""Layer (a folder, or a file beside them) -> layers that it may import beside itself and BASE."""

ONLY_IN = {
    "torch": {"runtime", "kernels", "engines.transformers"},
    "triton": {"kernels", "runtime.topk.triton_backend"},
    "safetensors": {"runtime"},
    "tokenizers": {"runtime"},
    "h5py": {"trace"},
    "rich": {"progress", "console", "report"},
    "typer": {"cli", "commands"},
    "click": set(),
}
"""Third-party package -> the only layers (or modules) that may import it."""


def imports_of(path: Path, module: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that a file imports, wherever the import stands."""
    is_package = path.name == "__init__.py"
    parts = module.split(".")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level + is_package] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            # `from moeinspect import runtime` imports a layer, too.
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _name_of(node.func) in ("import_module", "__import__"):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value


def violations(package: Path) -> list[str]:
    """Every import below `package` that goes against the rule, as `file:line: why`."""
    found = []
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package).with_suffix("")
        layer = relative.parts[0]
        module = ".".join([NAME, *(part for part in relative.parts if part != "__init__")])
        for line, name in imports_of(path, module):
            if reason := _reason(layer, ".".join(relative.parts), name):
                found.append(f"{path.relative_to(package)}:{line}: {reason}")
    return found


def _reason(layer: str, module: str, imported: str) -> str | None:
    top, _, rest = imported.partition(".")
    if top == NAME:
        target = rest.split(".")[0] or "__init__"
        if target.startswith("__") and target != "__main__":
            target = "__init__"
        if layer not in MAY_IMPORT:
            return f"layer {layer} is not in the table"
        allowed = MAY_IMPORT[layer] | BASE | {layer}
        return None if target in allowed else f"{layer} imports {target}"
    allowed_in = ONLY_IN.get(top)
    if allowed_in is None or layer in allowed_in or module in allowed_in:
        return None
    return f"{layer} imports {top}"


def _name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def test_the_package_keeps_the_one_way_rule():
    assert violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("path", "code", "reason"),
    [
        ("runtime/a.py", "from moeinspect.trace import schema\n", "runtime imports trace"),
        ("runtime/a.py", "import rich.table\n", "runtime imports rich"),
        ("runtime/deep/a.py", "from ...report import text\n", "runtime imports report"),
        ("trace/a.py", "def f():\n    import torch\n", "trace imports torch"),
        ("trace/a.py", "import importlib\nimportlib.import_module('torch.nn')\n", "trace imports torch"),
        (
            "analysis/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from moeinspect.report import text\n",
            "analysis imports report",
        ),
        ("analysis/a.py", "import h5py\n", "analysis imports h5py"),
        ("kernels/a.py", "from moeinspect import runtime\n", "kernels imports runtime"),
        ("report/__init__.py", "from ..commands import capture\n", "report imports commands"),
        ("commands/a.py", "import click\n", "commands imports click"),
        ("errors.py", "from moeinspect.console import Console\n", "errors imports console"),
        ("surprise/a.py", "import moeinspect.errors\n", "layer surprise is not in the table"),
    ],
)
def test_a_violation_is_found(tmp_path, path, code, reason):
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code)
    (found,) = violations(tmp_path)
    assert found.startswith(f"{path}:")
    assert found.endswith(reason)


def test_allowed_imports_are_not_violations(tmp_path):
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines" / "transformers.py").write_text("import torch\nfrom moeinspect.trace import a\n")
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "a.py").write_text(
        "from moeinspect import __version__\nfrom . import b\nfrom moeinspect.analysis import c\nimport rich"
    )
    assert violations(tmp_path) == []


HELP = [
    ["--help"],
    ["--version"],
    *([name, "-h"] for name in ("capture", "diff", "check-duplicates", "disagg-sim", "bisect", "explain")),
]


def modules_after(argv: list[str]) -> tuple[int, set[str]]:
    """Exit status of a command line in a fresh interpreter, and the top-level modules it had imported."""
    code = (
        "import sys\n"
        "from moeinspect.cli import main\n"
        f"status = main({argv!r})\n"
        "print('modules:', *{name.partition('.')[0] for name in sys.modules})\n"
        "sys.exit(status)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.returncode, set(done.stdout.rpartition("modules:")[2].split())


@pytest.mark.parametrize("argv", HELP, ids=" ".join)
def test_help_imports_nothing_heavy(argv):
    status, modules = modules_after(argv)
    assert status == 0
    assert "moeinspect" in modules
    assert not modules & {"torch", "triton", "h5py", "numpy", "rich"}


@pytest.fixture
def trace_file(tmp_path):
    """A small healthy trace, written without the runtime."""
    from moeinspect.trace.schema import ModelFacts, RequestRecord, RunInfo
    from moeinspect.trace.writer import TraceWriter

    n, layers, top_k = 6, (0, 1), 2
    run = RunInfo("moeinspect", "0", "now", False, "local", "0", "key", True, {})
    model = ModelFacts("m", "a", "f", 2, 8, top_k, "moe", layers)
    rng = np.random.default_rng(0)
    record = RequestRecord(
        id="a",
        prompt_ids=np.arange(4, dtype=np.int32),
        output_ids=np.arange(3, dtype=np.int32),
        expert_ids=np.stack([rng.permutation(8)[:top_k] for _ in range(n * 2)]).reshape(n, 2, top_k),
        validity=np.zeros(n, np.uint8),
        origin=np.zeros(n, np.uint8),
        worker=np.zeros(n, np.uint16),
        step=np.arange(n, dtype=np.int32),
        slot=np.arange(n, dtype=np.int32),
        row_weight_version=np.zeros(n, np.uint16),
    )
    with TraceWriter(tmp_path / "a.h5", run, model, worker_names=("unified",)) as writer:
        writer.append(record)
    return str(tmp_path / "a.h5")


@pytest.mark.parametrize("command", ["diff", "check-duplicates"])
@pytest.mark.parametrize("format", ["text", "json", "github"])
def test_looking_at_files_does_not_import_torch(trace_file, command, format):
    status, modules = modules_after([command, trace_file, trace_file, "--format", format])
    assert status == 0
    assert "h5py" in modules
    assert not modules & {"torch", "triton", "rich"}


@pytest.mark.parametrize("argv", [["no-merge"], ["--list"], ["no-merge", "--format", "json"]], ids=" ".join)
def test_explaining_does_not_import_torch(argv):
    status, modules = modules_after(["explain", *argv])
    assert status == 0
    assert not modules & {"torch", "triton", "h5py", "rich"}
