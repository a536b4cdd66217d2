"""What one forward of a model is asked to compute."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

from moeinspect.runtime.parallel.rows import GatheredRows


class ForwardMode(Enum):
    """The kind of a forward; its value is the word used in traces and events."""

    PREFILL = "prefill"
    DECODE = "decode"
    VERIFY = "verify"


@dataclass(slots=True)
class ForwardBatch:
    """Device-side inputs of one forward over N rows of B requests.

    Rows of one request stand together, in position order. `slot_table[b, p]` is the KV slot of position p
    of the batch's request b; entries past a request's allocation are slot 0, the dummy slot that belongs
    to nobody and holds finite values.
    """

    mode: ForwardMode
    input_ids: torch.Tensor  # [N] int64
    positions: torch.Tensor  # [N] int64
    out_slots: torch.Tensor  # [N] int64: where this forward stores K and V
    row_request: torch.Tensor  # [N] int64: index into B, ascending
    extend_lens: tuple[int, ...]  # B numbers of rows, host-known
    slot_table: torch.Tensor  # [B, max_len] int64
    logit_rows: torch.Tensor  # [n] int64: rows whose logits are wanted
    input_hidden: torch.Tensor | None = None  # [N, *]: what a draft head reads beside the tokens
    rows_per_request: int = 1  # of the scheduler's requests; in a draft tree each node is one of B
    dp_rows: tuple[int, ...] = ()  # rows of each data-parallel rank in this forward
    dp_requests: tuple[int, ...] = ()  # requests of each of them

    @property
    def num_rows(self) -> int:
        """N, the number of real rows; padding never shows outside a layer."""
        return self.input_ids.shape[0]


@dataclass(slots=True)
class ForwardOutput:
    """What one forward hands back.

    `logits` [len(logit_rows), V] float32. `slots` [n] are the KV slots of the first n rows of the capture's
    device buffer; `static`: a decode or verify graph was replayed, which writes them to the same place each
    time. `hidden` [N, width * H] are the hidden states of all rows that a draft head reads, None if no head
    asked for them. `gathered` says which rows of all ranks this forward had; None for a rank that is alone.
    The ranks of a data-parallel rank but its leader have no logits and no hidden states.
    """

    logits: torch.Tensor
    slots: torch.Tensor
    static: bool = False
    hidden: torch.Tensor | None = None
    gathered: GatheredRows | None = None


def empty_batch() -> ForwardBatch:
    """A forward without rows."""
    nothing = torch.zeros(0, dtype=torch.int64)
    return ForwardBatch(
        mode=ForwardMode.PREFILL,
        input_ids=nothing,
        positions=nothing,
        out_slots=nothing,
        row_request=nothing,
        extend_lens=(),
        slot_table=nothing.view(0, 0),
        logit_rows=nothing,
    )
