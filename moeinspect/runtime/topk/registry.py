"""Top-k backends by name."""

from __future__ import annotations

from moeinspect.errors import UsageError
from moeinspect.runtime.faults import NO_FAULTS, ActiveFaults
from moeinspect.runtime.topk.backend import MoEBackend
from moeinspect.runtime.topk.config import TopKConfig

BACKENDS = ("torch", "triton")


def create_backend(
    name: str, config: TopKConfig, layer_id: int, faults: ActiveFaults = NO_FAULTS
) -> MoEBackend:
    """Initialises a backend for one layer; its module is imported when it is first asked for.

    Raises:
        UsageError: no backend of this name.
    """
    if name == "torch":
        from moeinspect.runtime.topk.torch_backend import TorchTopK

        return TorchTopK(config, layer_id)
    if name == "triton":
        from moeinspect.runtime.topk.triton_backend import TritonTopK

        return TritonTopK(config, layer_id)
    raise UsageError(f"--backend {name}: no such top-k backend", f"known backends: {', '.join(BACKENDS)}")
