"""Runs Triton kernels on CPU tensors, through Triton's interpreter."""

from __future__ import annotations

import os
import sys

import torch

from moeinspect.errors import EngineError

_VARIABLE = "TRITON_INTERPRET"


def prepare_triton(device: torch.device) -> None:
    """Switches this process to Triton's interpreter if `device` is a CPU.

    Triton decides when it is imported, so this has to run before the first `import triton`.

    Raises:
        EngineError: Triton is not installed, or was imported before without the interpreter.
    """
    if device.type == "cpu" and os.environ.get(_VARIABLE) != "1":
        if "triton" in sys.modules:
            raise EngineError(
                "Triton was imported before its interpreter could be switched on for the CPU",
                f"set {_VARIABLE}=1 in the environment of the process",
            )
        os.environ[_VARIABLE] = "1"
    try:
        import triton  # noqa: F401
    except ImportError as error:
        raise EngineError("Triton is not installed", "use --backend torch") from error
