"""Top-k backends by name: the built-in ones, and those that installed distributions register."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint

import torch

from moeinspect.errors import EngineError, UsageError
from moeinspect.runtime.faults import NO_FAULTS, ActiveFaults
from moeinspect.runtime.topk.backend import MoEBackend, TokenRouter
from moeinspect.runtime.topk.config import TopKConfig
from moeinspect.runtime.topk.names import BUILTIN_BACKENDS, distribution_of, outside_backend

BackendFactory = Callable[[TopKConfig, int], MoEBackend]
"""Makes the backend of one layer from its configuration and its absolute index."""

LayerBackendFactory = Callable[[TopKConfig, int], MoEBackend | TokenRouter]
"""The same for layers of any kind of routing."""


def backend_factory(name: str, faults: ActiveFaults = NO_FAULTS) -> BackendFactory:
    """The backend `name`; its module is imported when it is first asked for.

    Raises:
        UsageError: no backend of this name, several, or one that cannot be imported or is none.
    """
    entry = outside_backend(name)
    if entry is not None:
        return partial(_make_outside, entry, _load(entry))
    return _builtin(name, faults)


def hash_router_factory(
    name: str, table: torch.Tensor, faults: ActiveFaults = NO_FAULTS
) -> LayerBackendFactory:
    """The router of a hash layer in a run with backend `name`; `table` [V, K] int32: experts by token."""
    from moeinspect.runtime.topk.hash_router import HashTopK

    return partial(HashTopK, table, fused=name == "bypass", faults=faults)


def create_backend(name: str, config: TopKConfig, layer_id: int) -> MoEBackend:
    """The healthy backend `name` of one layer; see `backend_factory`."""
    return backend_factory(name)(config, layer_id)


def _builtin(name: str, faults: ActiveFaults) -> BackendFactory:
    if name == "torch":
        from moeinspect.runtime.topk.torch_backend import TorchTopK

        return TorchTopK
    if name == "triton":
        from moeinspect.runtime.topk.triton_backend import TritonTopK

        return TritonTopK
    if name == "bypass":
        from moeinspect.runtime.topk.bypass_backend import BypassMoE

        return partial(BypassMoE, faults=faults)
    raise RuntimeError(f"{name} is in {BUILTIN_BACKENDS} and has no class")


def _load(entry: EntryPoint) -> type[MoEBackend]:
    who = f"--backend {entry.name}: {entry.value} of {distribution_of(entry)}"
    try:
        loaded = entry.load()
    except Exception as error:
        raise UsageError(
            f"{who} cannot be imported: {type(error).__name__}: {error}", "repair or uninstall it"
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, MoEBackend)):
        raise UsageError(
            f"{who} is not a top-k backend", "register a class derived from TopKBackend or MoEBackend"
        )
    return loaded


def _make_outside(
    entry: EntryPoint, backend: type[MoEBackend], config: TopKConfig, layer_id: int
) -> MoEBackend:
    try:
        return backend(config, layer_id)
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(
            f"--backend {entry.name}: {entry.value} of {distribution_of(entry)} cannot be initialised for "
            f"layer {layer_id}: {type(error).__name__}: {error}",
            "repair it or use another backend",
        ) from error
