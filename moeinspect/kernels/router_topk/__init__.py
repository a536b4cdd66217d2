"""Router top-k as a Triton kernel: softmax, the best K experts, renormalisation, capture.

`reference.router_topk` is its torch twin and the specification.
"""

from __future__ import annotations

import torch

from moeinspect.kernels.interpreter import prepare_triton

_BLOCK_ROWS = 8
CAPTURE_DTYPES = (torch.uint8, torch.int16)


def router_topk(
    logits: torch.Tensor, top_k: int, *, renormalize: bool, capture: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax over all experts in float32, then the `top_k` experts of the largest logits.

    Of equal logits the lowest expert id wins; NaN ranks as +inf. Weights are the probabilities, divided by
    their sum if `renormalize`, rounded to the dtype of the logits and returned as float32. On the CPU the
    kernel runs in Triton's interpreter, which takes milliseconds a row: for tests, not for work.

    Args:
        logits: [N, E], any float dtype, any strides.
        top_k: K, at most E.
        renormalize: whether the K weights of a row sum to 1.
        capture: [N, K] uint8 or int16 (read as uint16), any strides; the kernel writes the ids there too.

    Returns:
        Ids [N, K] int32, best first, and weights [N, K] float32. A row's bits do not depend on N.

    Raises:
        ValueError: shapes or dtypes that the kernel cannot take.
        EngineError: Triton is missing, or cannot be switched to its interpreter any more.
    """
    check_arguments(logits, top_k, capture)
    prepare_triton(logits.device)
    import triton

    from moeinspect.kernels.router_topk._triton import router_topk_kernel

    N, E = logits.shape
    logits = logits.contiguous()  # on a GPU other strides mean another layout, hence another order of the sum
    ids = torch.empty(N, top_k, dtype=torch.int32, device=logits.device)
    weights = torch.empty(N, top_k, dtype=torch.float32, device=logits.device)
    if N == 0:
        return ids, weights
    target = ids if capture is None else capture
    router_topk_kernel[(triton.cdiv(N, _BLOCK_ROWS),)](
        logits_ptr=logits,
        ids_ptr=ids,
        weights_ptr=weights,
        capture_ptr=target,
        num_rows=N,
        capture_row_stride=target.stride(0),
        capture_slot_stride=target.stride(1),
        NUM_EXPERTS=E,
        TOP_K=top_k,
        RENORMALIZE=renormalize,
        CAPTURE=capture is not None,
        BLOCK_ROWS=_BLOCK_ROWS,
        BLOCK_EXPERTS=triton.next_power_of_2(E),
        BLOCK_K=triton.next_power_of_2(top_k),
    )
    return ids, weights.to(logits.dtype).float()


def check_arguments(logits: torch.Tensor, top_k: int, capture: torch.Tensor | None) -> None:
    """Refuses what neither the kernel nor its twin can compute (ValueError)."""
    if logits.dim() != 2 or not logits.is_floating_point():
        raise ValueError(f"logits must be [N, E] of a float dtype, not {list(logits.shape)} {logits.dtype}")
    N, E = logits.shape
    if not 1 <= top_k <= E:
        raise ValueError(f"top_k must lie between 1 and {E} experts, not {top_k}")
    if capture is None:
        return
    if capture.shape != (N, top_k) or capture.dtype not in CAPTURE_DTYPES:
        raise ValueError(
            f"capture must be [{N}, {top_k}] uint8 or int16, not {list(capture.shape)} {capture.dtype}"
        )
    if capture.dtype == torch.uint8 and E > 256:
        raise ValueError(f"{E} experts do not fit into a uint8 capture")
