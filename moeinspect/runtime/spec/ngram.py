"""Proposes what followed the last tokens where they stood before: prompt lookup, without a model."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from moeinspect.runtime.capture.capturer import TopkCaptureOutput
from moeinspect.runtime.forward_batch import ForwardBatch
from moeinspect.runtime.spec.draft_length import DraftLength
from moeinspect.runtime.spec.proposer import Proposer
from moeinspect.runtime.spec.tree import Proposal, TreeShape
from moeinspect.runtime.worker.device_state import DeviceState

LONGEST = 3
"""Tokens of the longest suffix that is looked up."""


class Ngram(Proposer):
    """Looks the request's last 3, 2 or 1 tokens up in its own history, which lies on the device.

    Mirrors `sglang/srt/speculative/ngram_worker.py` (0.5.23) with the request's own tokens as the corpus.
    With a width above 1 the tree has a branch for each of that many matches.
    """

    has_model = False

    def __init__(self, state: DeviceState, length: DraftLength, width: int) -> None:
        super().__init__(length, width)
        self._state = state

    def propose(
        self, table_rows: torch.Tensor, num_drafts: int, captures: list[TopkCaptureOutput]
    ) -> Proposal:
        """The tokens after the best matches; after no match, the last token again and again."""
        history = self._state.history[table_rows]
        last = self._state.next_position[table_rows]
        if self.width == 1:
            return Proposal(continuations(history, last, best_matches(history, last, 1), num_drafts)[:, 0])
        shape = TreeShape(num_drafts, self.width)
        matches = best_matches(history, last, shape.level_widths[0])
        branches = continuations(history, last, matches, shape.depth)
        tokens = [branches[:, :width, i] for i, width in enumerate(shape.level_widths)]
        # Branch j has node j of each level, which hangs from node j of the level above.
        parents = [max(0, node - self.width) for node in range(1, num_drafts + 1)]
        return Proposal(torch.cat(tokens, dim=1), shape, torch.tensor(parents).expand(len(table_rows), -1))

    def extend(self, inputs: ForwardBatch, captures: list[TopkCaptureOutput]) -> None:
        """Nothing to do: the history is part of the device state."""


def best_matches(history: torch.Tensor, last: torch.Tensor, count: int) -> torch.Tensor:
    """Where the tokens up to `last` [B] stood before: positions of their last token [B, count].

    `history` [B, M] holds token ids by position. Longer matches go before shorter ones, later before
    earlier; where there are too few, `last` itself stands for no match.
    """
    B, M = history.shape
    positions = torch.arange(M)
    ends = positions < last[:, None]
    length = torch.zeros(B, M, dtype=torch.int64)
    matching = ends
    for n in range(LONGEST):
        before = history.gather(1, (last - n).clamp(min=0)[:, None])
        shifted = F.pad(history, (n, 0), value=-1)[:, :M]
        matching = matching & (shifted == before) & (last >= n)[:, None]
        length += matching
    best = torch.topk(length * M + positions, min(count, M), dim=1).indices
    best = torch.where(length.gather(1, best) > 0, best, last[:, None])
    return torch.cat([best, last[:, None].expand(-1, count - best.shape[1])], dim=1)


def continuations(
    history: torch.Tensor, last: torch.Tensor, matches: torch.Tensor, num_tokens: int
) -> torch.Tensor:
    """The `num_tokens` tokens after each of `matches` [B, m]: [B, m, num_tokens].

    A match so late that its continuation reaches the end goes on as if the text went round.
    """
    B, m = matches.shape
    period = (last[:, None] - matches).clamp(min=1)
    ahead = torch.arange(num_tokens) % period[:, :, None]
    first = torch.where(matches < last[:, None], matches + 1, last[:, None])
    return history.gather(1, (first[:, :, None] + ahead).reshape(B, -1)).view(B, m, num_tokens)
