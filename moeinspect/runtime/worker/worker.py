"""A target's process that schedules: with a draft perhaps, and everything that requests need."""

from __future__ import annotations

import torch

from moeinspect.runtime.capture.collector import RowCollector
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.device.stream import Jitter
from moeinspect.runtime.faults import STALE_SLOT
from moeinspect.runtime.memory.host_tier import HostTier, KVMover
from moeinspect.runtime.memory.page_allocator import PAGE_SIZE, PageAllocator
from moeinspect.runtime.memory.radix_cache import RadixCache
from moeinspect.runtime.memory.request_pool import RequestPool
from moeinspect.runtime.models.draft_heads import DraftHead
from moeinspect.runtime.models.qwen3_moe import Qwen3MoeForCausalLM
from moeinspect.runtime.parallel.commands import Initialize
from moeinspect.runtime.parallel.communicator import Communicator
from moeinspect.runtime.parallel.team import ALONE, Team
from moeinspect.runtime.plan import Plan
from moeinspect.runtime.sampling import SamplingParams
from moeinspect.runtime.spec.factory import make_proposer
from moeinspect.runtime.worker.device_state import DeviceState
from moeinspect.runtime.worker.model_runner import ModelRunner
from moeinspect.runtime.worker.target_rank import TargetRank


class Worker(TargetRank):
    """A target, perhaps a draft, and the pool of slots and rows that a scheduler gives to requests.

    Arguments are those of `TargetRank`; without `prefix_cache` it has none whatever the run says.
    """

    def __init__(
        self,
        config: RunConfig,
        plan: Plan,
        index: int,
        *,
        ranks: Communicator | None = None,
        team: Team = ALONE,
        kv_storage: list[torch.Tensor] | None = None,
        prefix_cache: bool = True,
        jitter: Jitter | None = None,
    ) -> None:
        super().__init__(config, plan, index, ranks=ranks, team=team, kv_storage=kv_storage, jitter=jitter)
        state = DeviceState(
            plan.max_running_requests,
            plan.max_len,
            SamplingParams(config.temperature, config.top_p, config.top_k),
            hidden=_room_for_hidden(self.models, plan),
        )
        # A draft opts out before its backends are built, backends bind to the capturer that the process has,
        # and graphs are captured from backends: each takes what it finds.
        draft_forwards = self.make_forwards(self.models[1], self.kv_caches[1]) if self.models[1:] else None
        draft = make_proposer(config, draft_forwards, state, self.faults)
        team.tell(Initialize(self.models[0].kept_layers))
        self.initialize()
        self.runner = ModelRunner(
            self.forwards,
            state,
            self.device,
            draft=draft,
            delayed_copy=config.overlap,
            faults=self.faults,
            gathering=self.gathering,
        )
        self.collector = RowCollector(self.capturer, plan.num_slots, index)
        self.pool = self._make_pool(config, plan, has_cache=config.prefix_cache and prefix_cache)

    def _make_pool(self, config: RunConfig, plan: Plan, *, has_cache: bool) -> RequestPool:
        allocator, mover = PageAllocator(plan.num_slots), KVMover(self.kv_caches, self.device, self.team)
        cache = None
        if has_cache:
            moves_rows = STALE_SLOT not in self.faults
            host = (
                HostTier(config.host_kv_slots, mover, self.collector, moves_rows=moves_rows)
                if config.host_kv_slots >= PAGE_SIZE
                else None
            )
            cache = RadixCache(allocator, host)
        return RequestPool(
            plan.max_running_requests,
            allocator,
            width=plan.width,
            lookahead=plan.lookahead,
            mover=mover,
            cache=cache,
        )


def _room_for_hidden(models: list[Qwen3MoeForCausalLM], plan: Plan) -> torch.Tensor | None:
    """Has the target keep the hidden states that a draft head reads, and makes room for the last of them."""
    target, head = models[0], models[-1]
    if not isinstance(head, DraftHead):
        return None
    target.keep_hidden(head.target_layers(target.config.num_hidden_layers))
    width = len(target.kept_layers) * target.config.hidden_size
    return torch.zeros(plan.max_running_requests, width, dtype=target.dtype)
