"""What every process has that serves a target or a share of it, put together in the order that matters."""

from __future__ import annotations

from dataclasses import replace

import torch

from moeinspect.runtime.capture.capturer import RoutedExpertsCapturer, set_global_experts_capturer
from moeinspect.runtime.capture.static_rows import LateHostBuffer
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.device.event_log import EventLog
from moeinspect.runtime.device.stream import Device, Jitter
from moeinspect.runtime.faults import GRAPH_STATIC_ROWS, INIT_ORDER, ActiveFaults
from moeinspect.runtime.memory.kv_cache import KVCache
from moeinspect.runtime.models.qwen3_moe import Qwen3MoeForCausalLM
from moeinspect.runtime.parallel.capture import RankCapture
from moeinspect.runtime.parallel.communicator import Communicator
from moeinspect.runtime.parallel.layout import FIRST
from moeinspect.runtime.parallel.team import ALONE, Team
from moeinspect.runtime.plan import Plan
from moeinspect.runtime.scheduler.weight_update import WeightUpdate
from moeinspect.runtime.worker.forward_runner import ForwardRunner
from moeinspect.runtime.worker.graph_runner import GraphRunner
from moeinspect.runtime.worker.loading import capture_shape, kv_shapes, load_draft, load_target, load_update


class TargetRank:
    """A target, or a rank's share of it, its capturer, and the device they run on; one a process.

    `index` counts the processes of the run; `ranks` reach the others of this worker, None if it is one
    process. A leader has its `team`, and loads the run's draft as well. `kv_storage` gives the memory of the
    KV caches, target first, where another process must reach it.
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
        jitter: Jitter | None = None,
    ) -> None:
        self.config = config
        self.plan = plan
        self.ranks = ranks
        self.team = team
        self.log = EventLog(index)
        self.faults = ActiveFaults.of(config.faults)
        place = FIRST if ranks is None else ranks.place
        target = load_target(config, ranks)
        self.models = [target, *(load_draft(config) if place.is_leader else [])]
        shapes = kv_shapes(config, plan, [model.config for model in self.models], place)
        self.kv_caches = [
            KVCache(shape, None if kv_storage is None else kv_storage[i]) for i, shape in enumerate(shapes)
        ]
        shape = capture_shape(config, plan, target)
        if not place.is_leader:
            shape = replace(shape, num_slots=1)  # its rows are stored by its leader
        self.capturer = RoutedExpertsCapturer(shape)
        self.gathering = None if ranks is None else RankCapture(ranks, target.config, shape, self.faults)
        if INIT_ORDER not in self.faults:
            set_global_experts_capturer(self.capturer)
        self.device = Device(config.threads, self.log, jitter)
        if GRAPH_STATIC_ROWS in self.faults:
            self.capturer.host_buffer = LateHostBuffer(
                shape, self.capturer.device_buffer, self.device.compute.synchronize
            )
        self.forwards = self.make_forwards(target, self.kv_caches[0])
        self.weight_updates = [
            WeightUpdate(step, load_update(config, name, target, ranks))
            for step, name in config.weight_updates
        ]

    def make_forwards(self, model: Qwen3MoeForCausalLM, kv: KVCache) -> ForwardRunner:
        """Runs a model's forwards, with graphs if the run has them; not initialised yet."""
        config, is_target = self.config, kv is self.kv_caches[0]
        team = self.team if is_target else ALONE
        if not config.graph:
            return ForwardRunner(model, kv, backend=config.backend, faults=self.faults, team=team)
        return GraphRunner(
            model,
            kv,
            backend=config.backend,
            max_rows=self.plan.max_tokens,
            prefill=is_target,
            on_device=lambda capture: self.device.compute.run(capture, kind="graph-capture", step=0),
            faults=self.faults,
            team=team,
        )

    def initialize(self) -> None:
        """Builds the target's backends and graphs; fault `init-order` makes the capturer known too late."""
        self.forwards.initialize()
        if INIT_ORDER in self.faults:
            set_global_experts_capturer(self.capturer)

    def close(self) -> None:
        """Ends the device's threads and takes the capturer out of the process."""
        self.device.close()
        set_global_experts_capturer(None)
