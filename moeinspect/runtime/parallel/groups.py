"""Ranks that exchange tensors with each other: collectives and messages from one to another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from moeinspect.errors import EngineError
from moeinspect.runtime.parallel.links import (
    LINK_TIMEOUT_S,
    LOOPBACK,
    LinkError,
    ProcessGroup,
    Store,
    as_bytes,
    first_line,
    open_process_group,
    prefixed,
)
from moeinspect.runtime.parallel.packing import pack_rows, unpack_rows


class RankGroup:
    """Some ranks of a worker; one alone has nobody to talk to, and every exchange returns its own.

    All members call the same methods in the same order, from one thread each. Tensors travel as bytes, so
    that nothing is rounded and every dtype will do. Rows stand in the order of the members.
    """

    def __init__(
        self,
        members: Sequence[int],
        rank: int,
        names: Sequence[str],
        group: ProcessGroup = None,
        device: torch.device | None = None,
    ) -> None:
        """`members` are ranks of the worker, `names` [all ranks] what messages call them."""
        self.members = tuple(members)
        self.index = self.members.index(rank)
        self._names = names
        self._group = group
        self._device = device

    @classmethod
    def open(
        cls,
        store: Store,
        prefix: str,
        members: Sequence[int],
        rank: int,
        names: Sequence[str],
        *,
        device: torch.device | None = None,
        host: str = LOOPBACK,
    ) -> RankGroup:
        """Meets the other members at `store`, under `prefix`, which must name this group alone.

        Raises:
            EngineError: the others did not come, or this torch has no such backend.
        """
        if len(members) == 1:
            return cls(members, rank, names)
        own_store = prefixed(f"{prefix}/{'-'.join(map(str, members))}", store)
        try:
            group = open_process_group(own_store, members.index(rank), len(members), device=device, host=host)
        except RuntimeError as error:
            others = ", ".join(names[member] for member in members if member != rank)
            raise EngineError(f"{names[rank]} could not meet {others}: {first_line(error)}") from error
        return cls(members, rank, names, group, device)

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.members)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [n, ...] of every member, all of one shape: [size, n, ...]."""
        return self.all_gather_rows(x, [x.shape[0]] * self.size).view(self.size, *x.shape)

    def all_gather_rows(self, x: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """`x` [counts[index], ...] of every member, one below the other: [sum of counts, ...]."""
        if self.size == 1:
            return x
        everybody = x.expand(self.size, *x.shape).reshape(-1, *x.shape[1:])
        return self.all_to_all(everybody, [x.shape[0]] * self.size, counts)

    def all_gather_packed(self, tensors: Sequence[torch.Tensor], counts: Sequence[int]) -> list[torch.Tensor]:
        """As `all_gather_rows` for several tensors of the same rows, in one exchange."""
        if self.size == 1:
            return list(tensors)
        return unpack_rows(self.all_gather_rows(pack_rows(tensors), counts), tensors)

    def all_to_all(
        self, x: torch.Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> torch.Tensor:
        """The first `send_counts[0]` rows of `x` go to member 0, the next to member 1, and so on.

        Returns the rows [sum of receive_counts, ...] that the members have for this one.

        Raises:
            LinkError: a member has gone, or did not come in time.
        """
        if self.size == 1:
            return x
        result = x.new_empty(sum(receive_counts), *x.shape[1:])
        row_bytes = x.shape[1:].numel() * x.element_size()
        options: Any = dist.AllToAllOptions()
        options.timeout = timedelta(seconds=LINK_TIMEOUT_S)
        with self._naming_others():
            self._group.alltoall_base(
                as_bytes(result).view(-1, row_bytes),
                as_bytes(x.contiguous()).view(-1, row_bytes),
                list(receive_counts),
                list(send_counts),
                options,
            ).wait()
        return result

    def reduce_scatter_rows(self, x: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Sums `x` [sum of counts, ...] over the members, in their order; each keeps its `counts` rows."""
        if self.size == 1:
            return x
        own = counts[self.index]
        parts = self.all_to_all(x, counts, [own] * self.size).view(self.size, own, *x.shape[1:])
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        return total

    def send(self, x: torch.Tensor, to: int, tag: int) -> None:
        """Sends `x` to the worker's rank `to`, a member; returns when it has taken it.

        Raises:
            LinkError: the receiver has gone, or did not take it in time.
        """
        self._message(to, lambda peer: self._group.send([as_bytes(x.contiguous())], peer, tag))

    def receive(self, shape: Sequence[int], dtype: torch.dtype, source: int, tag: int) -> torch.Tensor:
        """What the worker's rank `source`, a member, sends under `tag`.

        Raises:
            LinkError: the sender has gone, or did not send in time.
        """
        x = torch.empty(*shape, dtype=dtype, device=self._device)
        self._message(source, lambda peer: self._group.recv([as_bytes(x)], peer, tag))
        return x

    def _message(self, other: int, start: Callable[[int], Any]) -> None:
        try:
            start(self.members.index(other)).wait(timedelta(seconds=LINK_TIMEOUT_S))
        except RuntimeError as error:
            raise LinkError(
                self._names[other], f"the link to {self._names[other]} broke: {first_line(error)}"
            ) from error

    @contextmanager
    def _naming_others(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            others = [self._names[member] for i, member in enumerate(self.members) if i != self.index]
            peer = others[0] if len(others) == 1 else None
            raise LinkError(peer, f"the links to {', '.join(others)} broke: {first_line(error)}") from error
