"""The Triton kernel of the router; see `router_topk` for what it computes."""

# Triton gives annotations a meaning of its own, so only its constants carry any.
# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def router_topk_kernel(
    logits_ptr,
    ids_ptr,
    weights_ptr,
    capture_ptr,
    num_rows,
    capture_row_stride,
    capture_slot_stride,
    NUM_EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    CAPTURE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    experts = tl.arange(0, BLOCK_EXPERTS)
    slots = tl.arange(0, BLOCK_K)
    real_row = rows < num_rows
    real_expert = experts < NUM_EXPERTS
    offsets = rows[:, None].to(tl.int64) * NUM_EXPERTS + experts[None, :]
    # Upcast right after the load: arithmetic on bfloat16 is silently wrong in Triton's interpreter.
    logits = tl.load(logits_ptr + offsets, mask=real_row[:, None] & real_expert[None, :], other=0.0)
    logits = logits.to(tl.float32)

    # Maxima below never meet NaN: it ranks as +inf and poisons the row's weights through `total`.
    is_nan = logits != logits
    ranked = tl.where(is_nan, float("inf"), logits)
    ranked = tl.where(real_expert[None, :], ranked, float("-inf"))
    largest = tl.max(ranked, axis=1)
    exponentials = tl.where(real_expert[None, :], tl.exp(logits - largest[:, None]), 0.0)
    total = tl.sum(exponentials, axis=1)

    chosen_ids = tl.zeros([BLOCK_ROWS, BLOCK_K], dtype=tl.int32)
    chosen_weights = tl.zeros([BLOCK_ROWS, BLOCK_K], dtype=tl.float32)
    kept = tl.zeros([BLOCK_ROWS], dtype=tl.float32)
    candidate = tl.broadcast_to(real_expert[None, :], [BLOCK_ROWS, BLOCK_EXPERTS])
    for k in tl.static_range(TOP_K):
        best = tl.max(tl.where(candidate, ranked, float("-inf")), axis=1)
        tied = candidate & (ranked == best[:, None])
        winner = tl.min(tl.where(tied, experts[None, :], BLOCK_EXPERTS), axis=1)
        is_winner = experts[None, :] == winner[:, None]
        weight = tl.sum(tl.where(is_winner, exponentials, 0.0), axis=1) / total
        here = slots[None, :] == k
        chosen_ids = tl.where(here, winner[:, None], chosen_ids)
        chosen_weights = tl.where(here, weight[:, None], chosen_weights)
        kept += weight
        candidate = candidate & (experts[None, :] != winner[:, None])
    if RENORMALIZE:
        chosen_weights = chosen_weights / kept[:, None]

    real = real_row[:, None] & (slots[None, :] < TOP_K)
    out = rows[:, None].to(tl.int64) * TOP_K + slots[None, :]
    tl.store(ids_ptr + out, chosen_ids, mask=real)
    tl.store(weights_ptr + out, chosen_weights, mask=real)
    if CAPTURE:
        target = rows[:, None].to(tl.int64) * capture_row_stride + slots[None, :] * capture_slot_stride
        tl.store(capture_ptr + target, chosen_ids.to(capture_ptr.dtype.element_ty), mask=real)
