"""The command that runs a recorded run of the local runtime again, with one switch turned."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from moeinspect.trace.schema import Trace

DEFAULTS: dict[str, object] = {
    "traffic": [],
    "max_new_tokens": 32,
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "stop": [],
    "ignore_eos": False,
    "seed": 0,
    "target_only": False,
    "overlap": True,
    "stream": False,
    "prefix_cache": True,
    "host_kv_slots": 0,
    "graph": False,
    "chunked_prefill_size": 64,
    "max_running_requests": 16,
    "num_kv_slots": None,
    "weight_updates": [],
    "disagg": False,
    "prefill_workers": 1,
    "decode_workers": 1,
    "transfer": "shm",
    "dp_size": 1,
    "tp_size": 1,
    "pp_size": 1,
    "redundant_experts": 0,
    "rebalance_interval": 8,
    "fused_shared_expert": False,
    "draft": None,
    "num_draft_tokens": 4,
    "draft_topk": 1,
    "adaptive_draft": False,
    "deterministic": True,
    "backend": "torch",
    "device": "cpu",
    "dtype": "float32",
    "threads": 1,
    "weights": False,
    "margins": False,
}
"""What `moeinspect capture` does where it is told nothing, by the names in `run_config`."""

PART_OF = {
    "disagg": ("prefill_workers", "decode_workers", "transfer"),
    "draft": ("num_draft_tokens", "draft_topk", "adaptive_draft"),
    "prefix_cache": ("host_kv_slots",),
    "redundant_experts": ("rebalance_interval",),
}
"""What means nothing any more once the first is switched off."""

_FLAGS = {"weight_updates": "--weight-update"}


def run_again(trace: Trace, switch: tuple[str, ...]) -> str:
    """The commands that repeat the run with `switch` turned, and look at the outcome."""
    config = trace.run.run_config
    turned = switch[0].removeprefix("--").removeprefix("no-").replace("-", "_")
    words = ["moeinspect", "capture", str(config.get("model", trace.model.name))]
    if isinstance(prompts := config.get("prompts"), str):
        words += ["--prompts", prompts]
    words += option_list(config, {turned, *PART_OF.get(turned, ()), *_chosen_by_itself(config)})
    suffix = "-".join(switch).strip("-").replace("--", "-")
    output = f"{Path(trace.path).stem}-{suffix}.h5"
    again = [*words, *switch, "-o", output]
    return f"{shlex.join(again)} && {shlex.join(['moeinspect', 'diff', output])}"


def _chosen_by_itself(config: Mapping[str, Any]) -> Iterable[str]:
    """Options that the run chose a value for, because nobody else did."""
    automatic = config.get("automatic", [])
    return map(str, automatic) if isinstance(automatic, list) else ()


def option_list(
    config: Mapping[str, Any], without: Collection[str], always: Collection[str] = ()
) -> list[str]:
    """Every option of the run that is not at its default or is `always` said, but those `without`."""
    words = []
    for name, default in DEFAULTS.items():
        value = config.get(name, default)
        value = list(value) if isinstance(value, tuple) else value
        if name not in without and (name in always or value != default):
            words += _option(name, value)
    return words


def _option(name: str, value: object) -> list[str]:
    flag = _FLAGS.get(name, "--" + name.replace("_", "-"))
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    if isinstance(value, list):
        texts = [":".join(map(str, one)) if isinstance(one, (list, tuple)) else str(one) for one in value]
        return [word for text in texts for word in ([f"{flag}={text}"] if text[:1] == "-" else [flag, text])]
    return [flag, "none" if value is None else str(value)]
