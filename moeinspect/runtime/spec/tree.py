"""Trees of proposed tokens: where nodes stand, and who hangs from whom."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class TreeShape:
    """`num_nodes` nodes in levels of `width`, the last one narrower if it does not come out even.

    Node 0 is the root, the token that was sampled last; nodes 1 to `num_nodes` follow level by level. Which
    parent a node has differs from request to request; its level does not, so that the host knows the shape
    of every forward.
    """

    num_nodes: int
    width: int

    @cached_property
    def level_widths(self) -> tuple[int, ...]:
        """Nodes of level 1, 2, ...; there are ceil(num_nodes / width) levels."""
        full, rest = divmod(self.num_nodes, self.width)
        return (self.width,) * full + ((rest,) if rest else ())

    @property
    def depth(self) -> int:
        """Number of levels below the root: the most proposals that can be accepted."""
        return len(self.level_widths)

    @cached_property
    def node_depths(self) -> tuple[int, ...]:
        """The level of node 0, 1, ..., num_nodes."""
        return (0, *(d for d, width in enumerate(self.level_widths, start=1) for _ in range(width)))

    def level(self, depth: int) -> range:
        """The nodes of one level, from 0 on."""
        if depth == 0:
            return range(1)
        first = 1 + sum(self.level_widths[: depth - 1])
        return range(first, first + self.level_widths[depth - 1])

    def paths(self, parents: torch.Tensor) -> torch.Tensor:
        """Nodes from the root to each node [B, num_nodes + 1, depth + 1]; a node repeats past its own level.

        `parents` [B, num_nodes] holds the parent of nodes 1, 2, ...
        """
        B = parents.shape[0]
        paths = torch.zeros(B, self.num_nodes + 1, self.depth + 1, dtype=torch.int64)
        for depth in range(1, self.depth + 1):
            level = self.level(depth)
            above = parents[:, level.start - 1 : level.stop - 1]
            inherited = paths.gather(1, above[:, :, None].expand(-1, -1, self.depth + 1))
            paths[:, level.start : level.stop] = inherited
            paths[:, level.start : level.stop, depth:] = torch.arange(level.start, level.stop)[:, None]
        return paths


@dataclass(frozen=True, slots=True)
class Proposal:
    """Proposed tokens [B, N]: a chain, or with `parents` [B, N] a tree of `shape`."""

    tokens: torch.Tensor
    shape: TreeShape | None = None
    parents: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Children:
    """The nodes of a new level [B, width]: tokens, scores, and parents as places in the level above."""

    tokens: torch.Tensor
    scores: torch.Tensor
    parents: torch.Tensor


def best_children(scores: torch.Tensor, values: torch.Tensor, width: int) -> Children:
    """The `width` best continuations of a level's nodes by the sum of log-probabilities along their paths.

    `scores` [B, n] are those of the level above, `values` [B, n, V] its logits.
    """
    B, _, vocab = values.shape
    continued = scores[:, :, None] + torch.log_softmax(values, dim=-1)
    best = torch.topk(continued.view(B, -1), width, dim=1)
    return Children(best.indices % vocab, best.values, best.indices // vocab)
