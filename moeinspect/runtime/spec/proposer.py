"""What every kind of draft does: propose tokens, and keep itself up to date."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from moeinspect.runtime.capture.capturer import TopkCaptureOutput
from moeinspect.runtime.forward_batch import ForwardBatch
from moeinspect.runtime.spec.draft_length import DraftLength
from moeinspect.runtime.spec.tree import Proposal


class Proposer(ABC):
    """A draft. Its methods run on the compute stream and read the device state, never the host's requests.

    Mirrors the draft workers of `sglang/srt/speculative` (0.5.23): `standalone_worker`, `ngram_worker` and
    `eagle_worker`. `length` decides on the host how many tokens a step proposes. `width` above 1 proposes
    trees.
    """

    has_model = True
    """Whether there is a draft model whose KV `extend` keeps up to date."""

    def __init__(self, length: DraftLength, width: int) -> None:
        self.length = length
        self.width = width

    @abstractmethod
    def propose(
        self, table_rows: torch.Tensor, num_drafts: int, captures: list[TopkCaptureOutput]
    ) -> Proposal:
        """`num_drafts` tokens for each of the requests at `table_rows` [B], a chain or a tree.

        A faulty draft adds the captures of its forwards to `captures`; a healthy one leaves it alone.
        """

    @abstractmethod
    def extend(self, inputs: ForwardBatch, captures: list[TopkCaptureOutput]) -> None:
        """Computes what the draft keeps of the rows that the target just ran."""
