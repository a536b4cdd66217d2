"""The router in torch: the specification of the Triton kernel, tie order included."""

from __future__ import annotations

import torch

from moeinspect.kernels.router_topk import check_arguments

_MIN_ROWS = 16


def router_topk(
    logits: torch.Tensor, top_k: int, *, renormalize: bool, capture: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax over all experts in float32, then the `top_k` experts of the largest logits.

    Of equal logits the lowest expert id wins; NaN ranks as +inf. Weights are the probabilities, divided by
    their sum if `renormalize`, rounded to the dtype of the logits (as transformers hands them to the
    experts) and returned as float32.

    Args:
        logits: [N, E], any float dtype, any strides.
        top_k: K, at most E.
        renormalize: whether the K weights of a row sum to 1.
        capture: [N, K] uint8 or int16 (read as uint16), any strides; receives the ids.

    Returns:
        Ids [N, K] int32, best first, and weights [N, K] float32. A row's bits do not depend on N.
    """
    check_arguments(logits, top_k, capture)
    logits32 = logits.float()
    ranked = logits32.masked_fill(logits32.isnan(), torch.inf)
    ids = torch.sort(ranked, dim=-1, descending=True, stable=True).indices[:, :top_k]
    if capture is not None:
        capture.copy_(ids)
    return ids.int(), weights_of(logits, ids, renormalize=renormalize)


def weights_of(logits: torch.Tensor, ids: torch.Tensor, *, renormalize: bool) -> torch.Tensor:
    """Weights [N, K] float32 of `ids` [N, K], ranked or not, from `logits` [N, E]; see `router_topk`."""
    weights = _softmax(logits.float()).gather(1, ids.long())
    if renormalize:
        weights = weights / _sum_in_order(weights)
    return weights.to(logits.dtype).float()


def _softmax(logits32: torch.Tensor) -> torch.Tensor:
    """Softmax of [N, E] float32, computed on tiles of one fixed shape."""
    N, E = logits32.shape
    rows = _MIN_ROWS
    while rows * E % 64:  # whole vectors only: a vector loop's scalar tail rounds otherwise
        rows += _MIN_ROWS
    tiles = logits32.new_zeros(-(-N // rows) * rows, E)
    tiles[:N] = logits32
    return torch.cat([_softmax_tile(tile) for tile in torch.split(tiles, rows)])[:N]


def _softmax_tile(tile: torch.Tensor) -> torch.Tensor:
    exponentials = torch.exp(tile - tile.amax(dim=-1, keepdim=True))
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def _sum_in_order(weights: torch.Tensor) -> torch.Tensor:
    total = weights[:, :1]
    for k in range(1, weights.shape[1]):
        total = total + weights[:, k : k + 1]
    return total
