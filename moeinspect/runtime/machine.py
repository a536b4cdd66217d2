"""What bits may depend on, in one string."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from moeinspect.runtime.config import RunConfig


def machine_key(config: RunConfig) -> str:
    """CPU model, instruction level, torch version, dtype, threads and backend of a run.

    Two deterministic runs with the same key give the same bits; across keys only margins can tell.
    """
    return "; ".join(
        (
            f"cpu={_cpu_model()}",
            f"isa={torch.backends.cpu.get_cpu_capability()}",
            f"torch={torch.__version__}",
            f"dtype={config.dtype}",
            f"threads={config.threads}",
            f"backend={config.backend}",
        )
    )


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        first_core = cpuinfo.read_text().split("\n\n")[0]
        pairs = (line.partition(":") for line in first_core.splitlines())
        fields = {key.strip(): value.strip() for key, _, value in pairs}
        name = fields.get("model name", "")
        if name:
            return f"{name} family {fields.get('cpu family', '?')} model {fields.get('model', '?')}"
    return platform.processor() or platform.machine()
