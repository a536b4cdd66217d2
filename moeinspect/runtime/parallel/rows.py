"""Where the rows of one forward stand: by data-parallel rank, and within it by tensor-parallel rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class GatheredRows:
    """The rows that all data-parallel ranks run through one MoE layer at the same time.

    Data-parallel rank d has `dp_rows[d]` of them, from `dp_requests[d]` requests. Its tensor-parallel rank t
    has the rows [t * S, (t + 1) * S) as far as there are so many, where S is the least multiple of `tile`
    for which `tp` such ranges hold all. The rows of one `t`, d after d, are a part of the gathered batch.
    """

    dp_rows: tuple[int, ...]
    dp_requests: tuple[int, ...]
    tile: int
    tp: int

    @property
    def total(self) -> int:
        """Rows of all ranks."""
        return sum(self.dp_rows)

    def start(self, dp: int) -> int:
        """Rows of the data-parallel ranks before `dp`: where its own begin in the gathered batch."""
        return sum(self.dp_rows[:dp])

    def requests_before(self, dp: int) -> int:
        """Requests of the data-parallel ranks before `dp`."""
        return sum(self.dp_requests[:dp])

    def shard(self, dp: int, tp: int) -> range:
        """Which rows of data-parallel rank `dp` its rank `tp` has."""
        return shard_of(self.dp_rows[dp], self.tile, self.tp, tp)

    def tp_counts(self, dp: int) -> list[int]:
        """Rows of each tensor-parallel rank of `dp`."""
        return [len(self.shard(dp, tp)) for tp in range(self.tp)]

    def dp_counts(self, tp: int) -> list[int]:
        """Rows of each data-parallel rank's `tp`: what a gather between them brings together."""
        return [len(self.shard(dp, tp)) for dp in range(len(self.dp_rows))]

    def among_gathered(self, dp: int, tp: int) -> slice:
        """Where the rows of data-parallel rank `dp` stand among those that the ranks `tp` gather."""
        start = sum(self.dp_counts(tp)[:dp])
        return slice(start, start + len(self.shard(dp, tp)))

    def num_gathered(self, tp: int) -> int:
        """Rows that the data-parallel ranks' `tp` gather: those that each of them routes and captures."""
        return sum(self.dp_counts(tp))

    def gathered_by_tp(self) -> list[int]:
        """The same for each tensor-parallel rank."""
        return [self.num_gathered(tp) for tp in range(self.tp)]

    def ep_counts(self) -> list[int]:
        """Rows of each rank of the stage, in order of rank."""
        return [count for dp in range(len(self.dp_rows)) for count in self.tp_counts(dp)]

    def places(self, tp: int) -> torch.Tensor:
        """For the rows that `tp` has of all data-parallel ranks: where they stand in the gathered batch."""
        return _concatenated(_shifted(self.shard(dp, tp), self.start(dp)) for dp in range(len(self.dp_rows)))

    @cached_property
    def by_rank(self) -> torch.Tensor:
        """Puts what stands tp after tp, d after d within each, in order of rank: d after d."""
        places, end = {}, 0
        for tp in range(self.tp):
            for dp, count in enumerate(self.dp_counts(tp)):
                places[dp, tp] = range(end, end + count)
                end += count
        return _concatenated(places[block] for block in sorted(places))


def _shifted(rows: range, by: int) -> range:
    return range(rows.start + by, rows.stop + by)


def _concatenated(ranges: Iterable[range]) -> torch.Tensor:
    return torch.cat([torch.arange(rows.start, rows.stop) for rows in ranges])


def shard_size(num_rows: int, tile: int, tp: int) -> int:
    """Rows of a tensor-parallel rank, padded to whole tiles."""
    return -(-num_rows // (tile * tp)) * tile


def shard_of(num_rows: int, tile: int, tp: int, rank: int) -> range:
    """Which of `num_rows` real rows tensor-parallel rank `rank` has."""
    size = shard_size(num_rows, tile, tp)
    return range(min(rank * size, num_rows), min((rank + 1) * size, num_rows))
