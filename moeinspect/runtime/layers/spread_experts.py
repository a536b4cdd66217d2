"""The experts of a MoE layer, spread over all ranks of a pipeline stage (expert parallel)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch

from moeinspect.errors import EngineError
from moeinspect.runtime.layers.experts import Experts, combined
from moeinspect.runtime.parallel.communicator import Communicator
from moeinspect.runtime.parallel.rows import GatheredRows
from moeinspect.runtime.topk.backend import TopKOutput


class SpreadExperts:
    """As `Experts` for the layer's backend; `held` are the ones that this rank has.

    A call is given the part of the gathered batch that this tensor-parallel rank routed. Rows and choices
    are gathered from the other tensor-parallel ranks, each rank computes its own experts for all rows, and
    what it made of each choice travels back to the rank whose row it is, which sums as a rank alone would:
    in router order. Without `exact` each rank sums its own experts, and the partial sums are reduced.
    Every rank of the stage has to make the same calls. `on_dispatch`, if set, is told the ids [N, K] of all
    rows of the stage.
    """

    def __init__(
        self, held: Experts, slots_of_rank: Sequence[range], ranks: Communicator, *, exact: bool
    ) -> None:
        """`slots_of_rank` are the experts of each rank of the stage, one range after another."""
        self.held = held
        self.on_dispatch: Callable[[torch.Tensor], None] | None = None
        self._ranks = ranks
        self._exact = exact
        self._slots = slots_of_rank[ranks.ep.index]
        counts = torch.tensor([len(slots) for slots in slots_of_rank])
        self._owner = torch.arange(len(slots_of_rank)).repeat_interleave(counts)
        self._rows: GatheredRows | None = None

    @property
    def gate_up(self) -> torch.Tensor:
        """Not all of them are here.

        Raises:
            EngineError: always.
        """
        raise _no_weights()

    @property
    def down(self) -> torch.Tensor:
        """Not all of them are here.

        Raises:
            EngineError: always.
        """
        raise _no_weights()

    def begin(self, rows: GatheredRows) -> None:
        """Says where the rows of the next call stand."""
        self._rows = rows

    def __call__(self, x: torch.Tensor, chosen: TopKOutput) -> torch.Tensor:
        """Weighted sums of `x` [N, H], the gathered rows: [N, H], zeros but in this rank's own rows."""
        rows, place, tp = self._rows, self._ranks.place, self._ranks.tp
        if rows is None:
            raise RuntimeError("experts were called outside a forward")
        travelling = [x, chosen.ids] if self._exact else [x, chosen.ids, chosen.weights]
        gathered = tp.all_gather_packed(travelling, rows.gathered_by_tp())
        if tp.size > 1:
            gathered = [one.index_select(0, rows.by_rank) for one in gathered]
        if self.on_dispatch is not None:
            self.on_dispatch(gathered[1])
        own = rows.among_gathered(place.dp, place.tp)
        result = x.new_zeros(x.shape)
        if self._exact:
            outputs = self._outputs(gathered[0], gathered[1], rows)
            result[own] = combined(outputs, chosen.weights[own], self.held.num_shared)
        else:
            result[own] = self._reduced(gathered[0], gathered[1], gathered[2], rows).to(x.dtype)
        return result

    def move(self, sources: torch.Tensor) -> None:
        """Each slot gets the weights of slot `sources[slot]` [all slots], wherever they are."""
        ep = self._ranks.ep
        slots = (sources != torch.arange(sources.shape[0])).nonzero()[:, 0]
        if slots.shape[0] == 0:
            return
        to, source = self._owner[slots], self._owner[sources[slots]]
        leaving, coming = source == ep.index, to == ep.index
        send, receive = to[leaving], source[coming]
        given = sources[slots[leaving][torch.argsort(send, stable=True)]] - self._slots.start
        taken = slots[coming][torch.argsort(receive, stable=True)] - self._slots.start
        send_counts = torch.bincount(send, minlength=ep.size).tolist()
        receive_counts = torch.bincount(receive, minlength=ep.size).tolist()
        for weights in (self.held.gate_up, self.held.down):
            weights[taken] = ep.all_to_all(weights[given], send_counts, receive_counts)

    def _outputs(self, x: torch.Tensor, ids: torch.Tensor, rows: GatheredRows) -> torch.Tensor:
        """What the chosen experts make of this rank's own rows [n, K, H], from all rows of the stage."""
        ep, K = self._ranks.ep, ids.shape[1]
        owner = self._owner[ids.long()].view(-1)
        # Rows stand in order of rank, so these choices stand in order of the rank that they return to.
        mine = (owner == ep.index).nonzero()[:, 0]
        computed = self._compute(x, ids, mine)
        ends = [end * K for end in accumulate(rows.ep_counts(), initial=0)]
        bounds = torch.searchsorted(mine, torch.tensor(ends)).tolist()
        send = [b - a for a, b in pairwise(bounds)]
        own = owner[ends[ep.index] : ends[ep.index + 1]]
        receive = torch.bincount(own, minlength=ep.size).tolist()
        outputs = computed.new_empty(own.shape[0], computed.shape[1])
        outputs[torch.argsort(own, stable=True)] = ep.all_to_all(computed, send, receive)
        return outputs.view(-1, K, outputs.shape[1])

    def _reduced(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, rows: GatheredRows
    ) -> torch.Tensor:
        """The same with every rank's share of the weighted sums, added up: [n, H] float32."""
        ep, K = self._ranks.ep, ids.shape[1]
        mine = (self._owner[ids.long()].view(-1) == ep.index).nonzero()[:, 0]
        weighted = self._compute(x, ids, mine).float() * weights.reshape(-1)[mine].unsqueeze(-1)
        partial = torch.zeros(x.shape, dtype=torch.float32).index_add_(0, mine // K, weighted)
        return ep.reduce_scatter_rows(partial, rows.ep_counts())

    def _compute(self, x: torch.Tensor, ids: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
        """Outputs [M, H] of some of the choices [N * K], all of which fell on this rank's experts."""
        K = ids.shape[1]
        return self.held.compute(x, choices // K, ids.reshape(-1)[choices] - self._slots.start)


def _no_weights() -> EngineError:
    return EngineError(
        "the top-k backend reads the experts' weights itself, which are spread over several ranks",
        "leave out --dp-size and --tp-size, or use another --backend",
    )
