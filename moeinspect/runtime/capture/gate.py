"""The only way into the capturer, for every top-k backend (SGLang PR 26980)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

import torch

from moeinspect.runtime.capture.capturer import RoutedExpertsCapturer, get_global_experts_capturer
from moeinspect.runtime.topk.config import TopKConfig


class LayerWithTopK(Protocol):
    """A MoE layer: it carries its top-k configuration."""

    topk_config: TopKConfig


class ModelWithRoutedExperts(Protocol):
    """A model whose MoE layers can be told not to be captured."""

    def layers_with_topk(self) -> Iterable[LayerWithTopK]:
        """The MoE layers, in order."""


def capture_routed_experts_if_allowed(
    config: TopKConfig,
    layer_id: int,
    topk_ids: torch.Tensor,
    *,
    weights: torch.Tensor,
    router_logits: torch.Tensor | None,
) -> None:
    """Captures the ids [n, K] of one layer of the running forward, unless the layer opted out.

    Weights [n, K] and margins (from `router_logits` [n, E]; None: nothing was ranked, the margin is +inf) go
    along where the run records them. Columns of fused shared experts behind the K are stripped: the buffers
    have no room for them.
    """
    capturer = _capturer_for(config, layer_id)
    if capturer is not None:
        view = capturer.ids_view(layer_id, topk_ids.shape[0])
        view[:, : topk_ids.shape[1]] = topk_ids[:, : view.shape[1]]
        capture_routing_values_if_allowed(config, layer_id, weights=weights, router_logits=router_logits)


def captured_ids_view(config: TopKConfig, layer_id: int, num_rows: int) -> torch.Tensor | None:
    """The same gate for kernels that write the ids themselves: where to, or None if they must not."""
    capturer = _capturer_for(config, layer_id)
    return None if capturer is None else capturer.ids_view(layer_id, num_rows)[:, : config.top_k]


def capture_routing_values_if_allowed(
    config: TopKConfig, layer_id: int, *, weights: torch.Tensor, router_logits: torch.Tensor | None
) -> None:
    """Weights and margins behind the same gate, for backends that used `captured_ids_view`."""
    capturer = _capturer_for(config, layer_id)
    if capturer is not None:
        capturer.capture_values(layer_id, weights, router_logits)


def bound_config(config: TopKConfig) -> TopKConfig:
    """The configuration that a backend is made with: in a process without a capturer it is opted out.

    Nobody would read what such a backend captures. It is decided once, when the backend is made, as vLLM's
    layers bind their capture function when they are built: a process must have its capturer before.
    """
    if get_global_experts_capturer() is not None:
        return config
    return replace(config, allow_routed_experts_capture=False)


def disable_routed_experts_capture_for_draft(model: ModelWithRoutedExperts) -> None:
    """Opts every MoE layer of a draft model out; must run before backends and graphs are initialised."""
    for layer in model.layers_with_topk():
        layer.topk_config = replace(layer.topk_config, allow_routed_experts_capture=False)


def _capturer_for(config: TopKConfig, layer_id: int) -> RoutedExpertsCapturer | None:
    if not config.allow_routed_experts_capture:
        return None
    capturer = get_global_experts_capturer()
    return capturer if capturer is not None and capturer.has_layer(layer_id) else None
