"""The switches of a run out of `run_config`: in the local runtime's words, SGLang's or vLLM's.

Upstream: SGLang's `ServerArgs` (srt/server_args.py), vLLM's `EngineArgs` (engine/arg_utils.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from moeinspect.trace.schema import Trace

SGLANG, VLLM = "sglang", "vllm"

_NESTED = ("engine_args", "server_args")
"""Names under which a file of answers keeps the arguments of the server."""

_NO = {"", "0", "false", "no", "none", "null", "off"}
"""What stands for a switch that is off where arguments are text."""

_OFFLOADS = ("offloading", "lmcache", "flexkv")
_TRANSFERS = ("nixl", "mooncake", "moriio", "p2pnccl")
"""Parts of the names of vLLM's KV connectors: those that keep KV on the host, those between two servers."""

_WITHOUT_MODEL = ("ngram", "suffix", "medusa", "mlp_speculator")
"""Methods of speculation whose draft has no MoE layer."""

_FUSED_TOP_K = ("bypass", "flashinfer_trtllm", "flashinfer_mxfp4")
"""Backends, by the beginning of their names, that compute the top-k inside of the MoE kernel."""


class Arguments:
    """Switches by the names of `RunFacts`; None where `run_config` does not tell.

    A server's own arguments name `enable_return_routed_experts`, else there would be no rows: what such
    arguments leave out is at the engine's default.
    """

    def __init__(self, trace: Trace) -> None:
        config = dict(trace.run.run_config)
        for name in _NESTED:
            if isinstance(nested := config.get(name), Mapping):
                config = {**nested, **config}
        self._config = {str(name).lstrip("-").replace("-", "_"): value for name, value in config.items()}
        is_whole = bool(self.flag("enable_return_routed_experts"))
        self._defaults_of = trace.run.engine.lower() if is_whole else ""

    def flag(self, *names: str) -> bool | None:
        """The first of these switches that is told, on or off."""
        value = self._first(*names)
        return None if value is None else _is_on(value)

    def count(self, *names: str, default: int | None = None) -> int | None:
        """The first of these numbers that is told; `default` where an engine's arguments leave it out."""
        value = self._first(*names)
        if isinstance(value, str) and value.strip().isdigit():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        return default if value is None and self._defaults_of in (SGLANG, VLLM) else None

    @property
    def overlap(self) -> bool | None:
        """SGLang overlaps unless told otherwise; whether vLLM does depends on its version."""
        told = self.flag("overlap", "async_scheduling")
        if told is None and (disabled := self.flag("disable_overlap_schedule")) is not None:
            return not disabled
        return True if told is None and self._defaults_of == SGLANG else told

    @property
    def disagg(self) -> bool | None:
        """Prefill and decode on different servers."""
        told = self.flag("disagg", "disaggregation_mode")
        if told is None and (connector := self._connector) is not None:
            if any(part in connector for part in _TRANSFERS):
                return True
            return False if not connector or any(part in connector for part in _OFFLOADS) else None
        return self._else_off(told)

    @property
    def draft(self) -> bool | None:
        """Speculative decoding, n-gram included."""
        method = self._draft_method
        return None if method is None else method not in _NO

    @property
    def draft_layers(self) -> bool | None:
        """The draft may have MoE layers."""
        method = self._draft_method
        return None if method is None else method not in _NO and not method.startswith(_WITHOUT_MODEL)

    @property
    def ngram(self) -> bool:
        """The draft is n-gram look-up."""
        return (self._draft_method or "").startswith("ngram")

    @property
    def draft_tree(self) -> bool | None:
        """More than one branch: n-gram drafts of SGLang have several unless told otherwise."""
        if self.draft is False:
            return False
        if self._speculation is not None:
            return "speculative_token_tree" in self._speculation
        names = ["draft_topk", "speculative_eagle_topk"]
        is_sglang_ngram = self.ngram and self._defaults_of == SGLANG
        if is_sglang_ngram:
            names = ["speculative_ngram_max_bfs_breadth"]
        width = self.count(*names, default=2 if is_sglang_ngram else None)
        return None if width is None else width > 1

    @property
    def graph(self) -> bool | None:
        """CUDA graphs; vLLM has none on a CPU, whatever the arguments say."""
        told = self.flag("graph")
        if told is None and (eager := self.flag("disable_cuda_graph", "enforce_eager")) is not None:
            return not eager
        return True if told is None and self._defaults_of == SGLANG else told

    @property
    def backend(self) -> str | None:
        """The MoE backend, `bypass` for those that compute the top-k inside; None where the engine chose."""
        name = self._first("backend", "moe_runner_backend", "moe_backend")
        if name is None or str(name) == "auto":
            return None
        return "bypass" if str(name).startswith(_FUSED_TOP_K) else str(name)

    @property
    def host_tier(self) -> bool | None:
        """A prefix cache that moves KV to the host and back."""
        told = self.flag("host_kv_slots", "enable_hierarchical_cache", "kv_offloading_size")
        if told is None and (connector := self._connector) is not None:
            return any(part in connector for part in _OFFLOADS)
        return self._else_off(told)

    @property
    def prefix_cache(self) -> bool | None:
        """Prompts that begin alike share their KV."""
        told = self.flag("prefix_cache", "enable_prefix_caching")
        if told is None and (disabled := self.flag("disable_radix_cache")) is not None:
            return not disabled
        return True if told is None and self._defaults_of else told

    @property
    def redundant_experts(self) -> int | None:
        """Copies of experts beside the model's own."""
        told = self.count("redundant_experts", "ep_num_redundant_experts", "num_redundant_experts")
        if told is None and self._defaults_of == VLLM:
            placement = _mapping(self._first("eplb_config")) or {}
            inside = placement.get("num_redundant_experts", 0)
            return inside if isinstance(inside, int) else None
        return 0 if told is None and self._defaults_of == SGLANG else told

    @property
    def fused_shared_expert(self) -> bool | None:
        """What the engines do by themselves depends on the model."""
        if (disabled := self.flag("disable_shared_experts_fusion")) is not None:
            return not disabled
        return self.flag("fused_shared_expert")

    @property
    def _connector(self) -> str | None:
        """vLLM's KV connector in lower case, empty if there is none."""
        transfer = self._first("kv_transfer_config")
        if transfer is None:
            return "" if self._defaults_of == VLLM else None
        return str((_mapping(transfer) or {}).get("kv_connector") or "").lower()

    @property
    def _speculation(self) -> Mapping[str, Any] | None:
        return _mapping(self._first("speculative_config"))

    @property
    def _draft_method(self) -> str | None:
        """Lower case; empty if nothing drafts."""
        config = self._config
        for name in ("draft", "speculative_algorithm"):
            if name in config:
                return str(config[name] or "").lower()
        if self._speculation is not None:
            return str(self._speculation.get("method") or "draft_model").lower()
        return "" if self._defaults_of or "speculative_config" in config else None

    def _else_off(self, told: bool | None) -> bool | None:
        return False if told is None and self._defaults_of in (SGLANG, VLLM) else told

    def _first(self, *names: str) -> object:
        return next((self._config[name] for name in names if self._config.get(name) is not None), None)


def _is_on(value: object) -> bool:
    return value.strip().lower() not in _NO if isinstance(value, str) else bool(value)


def _mapping(value: object) -> Mapping[str, Any] | None:
    """A mapping, or the one that a text spells in JSON, as on a command line."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, Mapping) else None
