"""Every option of every command, each declared once; `_binding.bind` turns the fields into options."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from moeinspect import __version__
from moeinspect.console import Console

REQUESTS = "Requests"
SCHEDULING = "Scheduling"
DRAFT = "Draft model"
MACHINE = "Model and machine"
RECORDING = "What is recorded"
OUTPUT = "Output"
COMPARING = "Comparing"
SIMULATION = "Disaggregation"
LATER = "Of a later version: refused by name in this one"


class Color(StrEnum):
    """Values of --color."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Format(StrEnum):
    """Values of --format."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


class Backend(StrEnum):
    """Values of --backend."""

    TORCH = "torch"
    TRITON = "triton"
    BYPASS = "bypass"


class Dtype(StrEnum):
    """Values of --dtype."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Engine(StrEnum):
    """Values of --engine."""

    LOCAL = "local"
    TRANSFORMERS = "transformers"
    SGLANG = "sglang"
    VLLM = "vllm"


class Transfer(StrEnum):
    """Values of --transfer."""

    SHM = "shm"
    GLOO = "gloo"
    NCCL = "nccl"


def print_version(asked: bool) -> None:
    """Callback of --version."""
    if asked:
        typer.echo(f"moeinspect {__version__}")
        raise typer.Exit


def within(low: float, high: float = math.inf, *, above: bool = False) -> Callable[[Any], Any]:
    """Callback that refuses numbers outside `low` to `high`, and not-a-number; None is no number.

    `above` leaves `low` itself out. (Ranges of typer's own let nan pass and clutter the help.)
    """
    wanted = f"{'above' if above else 'at least'} {low}" + (
        "" if high == math.inf else f" and at most {high}"
    )

    def check(value: float | None) -> float | None:
        if value is None or (math.isfinite(value) and low <= value <= high and not (above and value == low)):
            return value
        raise typer.BadParameter(f"must be {wanted}, not {value}")

    return check


def _option(*names: str, panel: str, help: str, **settings: Any) -> Any:  # noqa: ANN401  # as typer's
    return typer.Option(*names, rich_help_panel=panel, help=help, **settings)


Version = Annotated[
    bool,
    _option(
        "--version",
        panel=OUTPUT,
        help="Print the version and exit.",
        is_eager=True,
        callback=print_version,
        show_default=False,
    ),
]
Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A Hugging Face checkpoint folder, builtin:tiny or builtin:random."),
]
TraceFile = Annotated[Path, typer.Argument(metavar="TRACE", help="A trace file.", show_default=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """What every command takes."""

    output: Annotated[
        Path | None,
        _option("-o", "--output", panel=OUTPUT, metavar="FILE", help="Where to write the result."),
    ] = None
    force: Annotated[
        bool, _option("-f", "--force", panel=OUTPUT, help="Overwrite existing output.", show_default=False)
    ] = False
    format: Annotated[Format, _option("--format", panel=OUTPUT, help="Format of the result.")] = Format.TEXT
    color: Annotated[
        Color, _option("--color", panel=OUTPUT, help="Colour; auto also heeds NO_COLOR and FORCE_COLOR.")
    ] = Color.AUTO
    quiet: Annotated[
        bool,
        _option("-q", "--quiet", panel=OUTPUT, help="No messages and no progress.", show_default=False),
    ] = False
    verbose: Annotated[
        int, _option("-v", "--verbose", panel=OUTPUT, count=True, help="More messages.", show_default=False)
    ] = 0
    version: Version = False

    def configure(self, console: Console) -> None:
        """Tells the console what the user wants to see."""
        console.configure(color=self.color.value, quiet=self.quiet, verbosity=self.verbose)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a run of the runtime takes; the names are those of `runtime.config.RunConfig`."""

    prompts: Annotated[
        str | None,
        _option(
            "--prompts",
            panel=REQUESTS,
            metavar="FILE",
            help="Requests, one JSON object a line; - reads stdin. Without it: the built-in prompts.",
        ),
    ] = None
    max_new_tokens: Annotated[
        int,
        _option(
            "--max-new-tokens",
            panel=REQUESTS,
            metavar="N",
            callback=within(1),
            help="Output tokens per request.",
        ),
    ] = 32
    temperature: Annotated[
        float,
        _option(
            "--temperature",
            panel=REQUESTS,
            metavar="T",
            callback=within(0),
            help="Sampling temperature; 0 is greedy.",
        ),
    ] = 0.0
    top_p: Annotated[
        float,
        _option(
            "--top-p",
            panel=REQUESTS,
            metavar="P",
            callback=within(0, 1, above=True),
            help="Nucleus of sampling.",
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        _option(
            "--top-k",
            panel=REQUESTS,
            metavar="K",
            callback=within(0),
            help="Sample among the K likeliest tokens; 0: among all.",
        ),
    ] = 0
    ignore_eos: Annotated[
        bool,
        _option(
            "--ignore-eos", panel=REQUESTS, help="Do not stop at the end-of-text token.", show_default=False
        ),
    ] = False
    seed: Annotated[
        int,
        _option(
            "--seed", panel=REQUESTS, metavar="N", callback=within(0, 2**63 - 1), help="Seed of sampling."
        ),
    ] = 0
    overlap: Annotated[
        bool,
        _option(
            "--overlap/--no-overlap",
            panel=SCHEDULING,
            help="Schedule the next step while the device runs this one.",
        ),
    ] = True
    disagg: Annotated[
        bool,
        _option("--disagg/--no-disagg", panel=SCHEDULING, help="Prefill and decode in separate processes."),
    ] = False
    chunked_prefill_size: Annotated[
        int,
        _option(
            "--chunked-prefill-size",
            panel=SCHEDULING,
            metavar="N",
            callback=within(1),
            help="Most prompt tokens in one forward.",
        ),
    ] = 64
    max_running_requests: Annotated[
        int,
        _option(
            "--max-running-requests",
            panel=SCHEDULING,
            metavar="N",
            callback=within(1),
            help="Most requests at a time.",
        ),
    ] = 16
    num_kv_slots: Annotated[
        int | None,
        _option(
            "--num-kv-slots",
            panel=SCHEDULING,
            metavar="N",
            callback=within(1),
            help="Tokens that the KV cache holds. Without it: enough for the requests that run at a time.",
        ),
    ] = None
    target_only: Annotated[
        bool,
        _option(
            "--target-only",
            panel=SCHEDULING,
            help="The reference run: one process, one request at a time, whole prompts, no draft.",
            show_default=False,
        ),
    ] = False
    fault: Annotated[
        list[str],
        _option(
            "--fault",
            panel=SCHEDULING,
            metavar="NAME",
            help="Commit this known bug on purpose; may be repeated.",
            show_default=False,
        ),
    ] = field(default_factory=list)
    list_faults: Annotated[
        bool, _option("--list-faults", panel=SCHEDULING, help="List the faults and exit.", show_default=False)
    ] = False
    draft: Annotated[
        str,
        _option(
            "--draft",
            panel=DRAFT,
            metavar="MODEL",
            help="Draft model: a checkpoint folder, builtin:tiny-draft or none.",
        ),
    ] = "none"
    num_draft_tokens: Annotated[
        int,
        _option(
            "--num-draft-tokens",
            panel=DRAFT,
            metavar="N",
            callback=within(1),
            help="Tokens proposed per step.",
        ),
    ] = 4
    deterministic: Annotated[
        bool,
        _option(
            "--deterministic/--no-deterministic",
            panel=MACHINE,
            help="The same bits whatever the batch, chunk or worker; or the ordinary, faster kernels.",
        ),
    ] = True
    backend: Annotated[
        Backend, _option("--backend", panel=MACHINE, help="What computes the router's top-k.")
    ] = Backend.TORCH
    device: Annotated[str, _option("--device", panel=MACHINE, metavar="DEVICE", help="Where to run.")] = "cpu"
    dtype: Annotated[Dtype, _option("--dtype", panel=MACHINE, help="Type of weights and activations.")] = (
        Dtype.FLOAT32
    )
    threads: Annotated[
        int,
        _option(
            "--threads",
            panel=MACHINE,
            metavar="N",
            callback=within(1, 1024),
            help="CPU threads of every worker.",
        ),
    ] = 1
    weights: Annotated[
        bool,
        _option("--weights/--no-weights", panel=RECORDING, help="Record the routing weights, too."),
    ] = False
    margins: Annotated[
        bool,
        _option(
            "--margins/--no-margins",
            panel=RECORDING,
            help="Record by how much the last chosen expert won, too.",
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterRunOptions:
    """Options of a run that this version knows by name only (see `_later`)."""

    stop: Annotated[list[str], _option("--stop", panel=LATER, metavar="STR", help="Stop at this text.")] = (
        field(default_factory=list)
    )
    draft_topk: Annotated[
        int,
        _option(
            "--draft-topk", panel=LATER, metavar="N", callback=within(1), help="Branches of the draft's tree."
        ),
    ] = 1
    adaptive_draft: Annotated[
        bool,
        _option("--adaptive-draft", panel=LATER, help="Fit the draft's length.", show_default=False),
    ] = False
    prefix_cache: Annotated[
        bool,
        _option("--prefix-cache/--no-prefix-cache", panel=LATER, help="Reuse the KV of shared prefixes."),
    ] = False
    host_kv_slots: Annotated[
        int,
        _option(
            "--host-kv-slots", panel=LATER, metavar="N", callback=within(0), help="KV kept in host memory."
        ),
    ] = 0
    graph: Annotated[bool, _option("--graph/--no-graph", panel=LATER, help="Replay captured graphs.")] = False
    redundant_experts: Annotated[
        int,
        _option(
            "--redundant-experts",
            panel=LATER,
            metavar="N",
            callback=within(0),
            help="Copies of loaded experts.",
        ),
    ] = 0
    fused_shared_expert: Annotated[
        bool,
        _option(
            "--fused-shared-expert", panel=LATER, help="The shared expert as a column.", show_default=False
        ),
    ] = False
    dp_size: Annotated[
        int, _option("--dp-size", panel=LATER, metavar="N", callback=within(1), help="Data-parallel ranks.")
    ] = 1
    tp_size: Annotated[
        int, _option("--tp-size", panel=LATER, metavar="N", callback=within(1), help="Tensor-parallel ranks.")
    ] = 1
    pp_size: Annotated[
        int, _option("--pp-size", panel=LATER, metavar="N", callback=within(1), help="Pipeline stages.")
    ] = 1
    engine: Annotated[Engine, _option("--engine", panel=LATER, help="Who runs the model.")] = Engine.LOCAL
    url: Annotated[
        str | None, _option("--url", panel=LATER, metavar="URL", help="Address of a running engine.")
    ] = None
    replay: Annotated[
        str | None, _option("--replay", panel=LATER, metavar="TRACE", help="Force a trace's routing.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFactsOptions:
    """Facts of the model for traces that do not carry them; of a later version."""

    model: Annotated[
        str | None,
        _option(
            "--model",
            panel=LATER,
            metavar="PATH",
            help="Checkpoint folder or config.json with the model's facts.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """How `diff` compares."""

    keep_baseline: Annotated[
        Path | None,
        _option(
            "--keep-baseline", panel=COMPARING, metavar="FILE", help="Keep the baseline that diff makes."
        ),
    ] = None
    max_mismatch: Annotated[
        float,
        _option(
            "--max-mismatch",
            panel=COMPARING,
            metavar="SHARE",
            callback=within(0, 1),
            help="Share of cells that may differ before it is a finding.",
        ),
    ] = 0.0
    strict: Annotated[
        bool,
        _option("--strict", panel=COMPARING, help="Numerics count as differences.", show_default=False),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterComparisonOptions:
    """Options of `diff` that this version knows by name only."""

    noise_floor: Annotated[
        Path | None,
        _option(
            "--noise-floor", panel=LATER, metavar="TRACE2", help="The same run once more, to learn its noise."
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """How `disagg-sim` spreads the work."""

    transfer: Annotated[
        Transfer, _option("--transfer", panel=SIMULATION, help="How KV travels; this version: shm.")
    ] = Transfer.SHM
    prefill_workers: Annotated[
        int,
        _option(
            "--prefill-workers",
            panel=SIMULATION,
            metavar="M",
            callback=within(1),
            help="Prefill workers; this version: 1.",
        ),
    ] = 1
    decode_workers: Annotated[
        int,
        _option(
            "--decode-workers",
            panel=SIMULATION,
            metavar="N",
            callback=within(1),
            help="Decode workers; this version: 1.",
        ),
    ] = 1
