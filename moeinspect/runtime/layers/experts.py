"""The experts of a MoE layer: only those that were chosen run, each on fixed tiles of its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from moeinspect.runtime.layers.dispatch import DispatchPlan, plan_dispatch
from moeinspect.runtime.layers.mlp import swiglu
from moeinspect.runtime.layers.tiles import product_tiles, tile_rows
from moeinspect.runtime.topk.backend import TopKOutput


class Experts:
    """SwiGLU experts: `gate_up` [E, 2 I, H] holds gate, then up; `down` [E, H, I].

    The last `num_shared` columns of what was chosen are fused shared experts. `on_dispatch`, if set, is told
    the ids [N, K] that are about to run.
    """

    def __init__(
        self, gate_up: torch.Tensor, down: torch.Tensor, *, tiled: bool, num_shared: int = 0
    ) -> None:
        self.gate_up, self.down = gate_up, down
        self.num_shared = num_shared
        self._gate_up_t = [weight.t() for weight in gate_up]
        self._down_t = [weight.t() for weight in down]
        self._num_experts, self._hidden, self._intermediate = down.shape
        self._tile = tile_rows(self._hidden, self._intermediate) if tiled else None
        self.on_dispatch: Callable[[torch.Tensor], None] | None = None

    def __call__(self, x: torch.Tensor, chosen: TopKOutput) -> torch.Tensor:
        """Sum over each row's experts, weighted, in router order: x [N, H] to [N, H]."""
        N, K = chosen.ids.shape
        if self.on_dispatch is not None:
            self.on_dispatch(chosen.ids)
        rows = torch.arange(N).repeat_interleave(K)
        outputs = self.compute(x, rows, chosen.ids.reshape(-1)).view(N, K, self._hidden)
        return combined(outputs, chosen.weights, self.num_shared)

    def compute(self, x: torch.Tensor, rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Outputs [M, H] of M choices: expert `experts[i]` [M] on row `rows[i]` [M] of `x` [N, H]."""
        if experts.shape[0] == 0:
            return x.new_empty(0, self._hidden)
        plan = plan_dispatch(experts, rows, self._num_experts, self._tile_sizes(x.dtype))
        gathered = x.index_select(0, plan.source_row)
        gate_up = _grouped_product(gathered, self._gate_up_t, plan)
        computed = _grouped_product(swiglu(gate_up), self._down_t, plan)
        return computed.index_select(0, plan.result_row)

    def move(self, sources: torch.Tensor) -> None:
        """Each expert e gets the weights of expert `sources[e]` [E], all read before any is written."""
        moved = (sources != torch.arange(self._num_experts)).nonzero()[:, 0]
        for weights in (self.gate_up, self.down):
            weights[moved] = weights[sources[moved]]

    def _tile_sizes(self, dtype: torch.dtype) -> tuple[int, ...] | None:
        """Sizes that suit both products, descending; None in the ordinary mode."""
        if self._tile is None:
            return None
        up = product_tiles(self._hidden, 2 * self._intermediate, dtype, self._tile)
        down = product_tiles(self._intermediate, self._hidden, dtype, self._tile)
        return tuple(size for size in up if size in down)


def _grouped_product(x: torch.Tensor, weights_t: Sequence[torch.Tensor], plan: DispatchPlan) -> torch.Tensor:
    """Each piece of rows [P, in] times its expert's transposed weight [in, out]: [P, out]."""
    result = x.new_empty(x.shape[0], weights_t[0].shape[1])
    pieces = zip(plan.experts, torch.split(x, plan.sizes), torch.split(result, plan.sizes), strict=True)
    for expert, rows, out in pieces:
        torch.mm(rows, weights_t[expert], out=out)
    return result


def combined(outputs: torch.Tensor, weights: torch.Tensor, num_shared: int) -> torch.Tensor:
    """What a layer makes of its experts' `outputs` [N, K, H] with `weights` [N, K]: [N, H] of the same dtype.

    The routed ones are summed and rounded, then the `num_shared` last ones are added one by one, as if they
    had run by themselves.
    """
    num_routed = outputs.shape[1] - num_shared
    total = _weighted_sum(outputs[:, :num_routed], weights[:, :num_routed]).to(outputs.dtype)
    for k in range(num_routed, outputs.shape[1]):
        total += outputs[:, k]
    return total


def _weighted_sum(outputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Sum of `outputs` [N, K, H] weighted by `weights` [N, K], one expert after another, in float32."""
    weighted = outputs.float() * weights.unsqueeze(-1)
    total = weighted[:, 0]
    for k in range(1, weighted.shape[1]):
        total = total + weighted[:, k]
    return total
