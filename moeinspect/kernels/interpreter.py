"""Runs Triton kernels where there is no GPU, through Triton's interpreter."""

from __future__ import annotations

import os
import sys

import torch

from moeinspect.errors import EngineError

_VARIABLE = "TRITON_INTERPRET"


def interpret_without_gpu() -> None:
    """Switches this process to Triton's interpreter if it has no CUDA device.

    Triton decides when it is imported, so this has to run before the first `import triton`.

    Raises:
        EngineError: Triton was imported before, without the interpreter.
    """
    if torch.cuda.is_available() or os.environ.get(_VARIABLE) == "1":
        return
    if "triton" in sys.modules:
        raise EngineError(
            "Triton was imported before its interpreter could be switched on",
            f"set {_VARIABLE}=1 in the environment of the process",
        )
    os.environ[_VARIABLE] = "1"
