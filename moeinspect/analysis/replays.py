"""What a trace says of routing replay: that its routers were handed the rows of another run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeinspect.trace.schema import Trace

_KEYS = (
    "routing_replay",
    "router_replay",
    "use_rollout_routing_replay",
    "use_routing_replay",
    "enable_routing_replay",
    "moe_enable_routing_replay",
    "enable_rollout_routing_replay",
)
"""Switches of the trainers: verl's `router_replay.mode`, slime's, miles' and Megatron's arguments."""

_SERVERS = ("sglang", "vllm", "trt", "tensorrt")

_OFF = {"", "none", "null", "off", "false", "disabled", "no", "0"}


def replay_statement(trace: Trace) -> str:
    """The switch of `run_config` that states a replay of rollout rows, as `name = value`; empty: none does.

    A server has no replay, whatever arguments the trainer that started it passed on.
    """
    if trace.run.engine.lower().startswith(_SERVERS):
        return ""
    config = trace.run.run_config
    for key in _KEYS:
        value = config.get(key)
        if isinstance(value, Mapping):
            value = value.get("mode", value.get("enabled"))
        if value is not None and str(value).strip().lower() not in _OFF:
            return f"{key} = {_plain(value)}"
    return ""


def _plain(value: Any) -> str:  # noqa: ANN401  # whatever the configuration holds
    return str(value).lower() if isinstance(value, bool) else str(value)
