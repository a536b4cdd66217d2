"""Which proposed tokens the target keeps."""

from __future__ import annotations

import torch


def accept_matching(drafts: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
    """Length of the accepted prefix of each request [B].

    `drafts` [B, n] were proposed; `sampled` [B, n + 1] is what the target itself samples after the last
    verified token and after each draft. A draft is accepted if and only if it equals the target's own
    token there and every draft before it was accepted, so the draft never changes the output.
    """
    matches = drafts == sampled[:, : drafts.shape[1]]
    return matches.to(torch.int64).cumprod(dim=1).sum(dim=1)
