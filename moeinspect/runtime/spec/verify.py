"""Which proposed tokens the target keeps."""

from __future__ import annotations

import torch

from moeinspect.runtime.spec.tree import TreeShape


def accept_matching(drafts: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
    """Length of the accepted prefix of each request [B].

    `drafts` [B, n] were proposed; `sampled` [B, n + 1] is what the target itself samples after the last
    verified token and after each draft. A draft is accepted if and only if it equals the target's own
    token there and every draft before it was accepted, so the draft never changes the output.
    """
    matches = drafts == sampled[:, : drafts.shape[1]]
    return matches.to(torch.int64).cumprod(dim=1).sum(dim=1)


def accept_path(
    tokens: torch.Tensor, parents: torch.Tensor, shape: TreeShape, sampled: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The deepest accepted node of each request [B], 0 if none, and its level [B].

    `tokens` and `parents` [B, N] are those of nodes 1 to N, `sampled` [B, N + 1] what the target samples
    after the root and after each node. A node is accepted if and only if it equals what the target samples
    at its parent and the parent was accepted.
    """
    B = tokens.shape[0]
    accepted = torch.ones(B, shape.num_nodes + 1, dtype=torch.bool)
    for depth in range(1, shape.depth + 1):
        level = shape.level(depth)
        nodes = slice(level.start - 1, level.stop - 1)
        above = parents[:, nodes]
        accepted[:, level.start : level.stop] = accepted.gather(1, above) & (
            tokens[:, nodes] == sampled.gather(1, above)
        )
    depths = torch.tensor(shape.node_depths)
    # The first of the deepest: siblings with one token are accepted together.
    rank = depths * (shape.num_nodes + 1) - torch.arange(shape.num_nodes + 1)
    best = torch.where(accepted, rank, -shape.num_nodes - 1).argmax(dim=1)
    return best, depths[best]
