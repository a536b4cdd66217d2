"""Everything that one process needs to serve the target, put together in the order that matters."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moeinspect.errors import InputError
from moeinspect.runtime.builtin_names import draft_model_of
from moeinspect.runtime.capture.capturer import (
    CaptureShape,
    RoutedExpertsCapturer,
    set_global_experts_capturer,
)
from moeinspect.runtime.capture.collector import RowCollector
from moeinspect.runtime.capture.static_rows import LateHostBuffer
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.device.event_log import EventLog
from moeinspect.runtime.device.stream import Device, Jitter
from moeinspect.runtime.faults import (
    GRAPH_STATIC_ROWS,
    INIT_ORDER,
    PHYSICAL_IDS,
    STALE_SLOT,
    ActiveFaults,
)
from moeinspect.runtime.layers.placement import ExpertOptions
from moeinspect.runtime.memory.host_tier import HostTier, KVMover
from moeinspect.runtime.memory.kv_cache import KVCache, KVShape
from moeinspect.runtime.memory.page_allocator import PAGE_SIZE, PageAllocator
from moeinspect.runtime.memory.radix_cache import RadixCache
from moeinspect.runtime.memory.request_pool import RequestPool
from moeinspect.runtime.models.config import ModelConfig
from moeinspect.runtime.models.draft_heads import DraftHead
from moeinspect.runtime.models.loader import load_model
from moeinspect.runtime.models.qwen3_moe import Qwen3MoeForCausalLM
from moeinspect.runtime.parallel.roster import Seat
from moeinspect.runtime.plan import Plan
from moeinspect.runtime.sampling import SamplingParams
from moeinspect.runtime.scheduler.weight_update import WeightUpdate
from moeinspect.runtime.spec.factory import make_proposer
from moeinspect.runtime.worker.device_state import DeviceState
from moeinspect.runtime.worker.forward_runner import ForwardRunner
from moeinspect.runtime.worker.graph_runner import GraphRunner
from moeinspect.runtime.worker.model_runner import ModelRunner

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Worker:
    """A target, its capturer, perhaps a draft, and the device they run on; one a process.

    `kv_storage` gives the memory of the KV caches, target first, where another process must reach it.
    """

    def __init__(
        self,
        config: RunConfig,
        plan: Plan,
        index: int,
        *,
        kv_storage: list[torch.Tensor] | None = None,
        prefix_cache: bool = True,
        jitter: Jitter | None = None,
    ) -> None:
        self.log = EventLog(index)
        self.faults = ActiveFaults.of(config.faults)
        models = load_models(config)
        target = models[0]
        self.kv_caches = [
            KVCache(shape, None if kv_storage is None else kv_storage[i])
            for i, shape in enumerate(kv_shapes(config, plan, [model.config for model in models]))
        ]
        capturer = RoutedExpertsCapturer(_capture_shape(config, plan, target))
        if INIT_ORDER not in self.faults:
            set_global_experts_capturer(capturer)
        self.device = Device(config.threads, self.log, jitter)
        if GRAPH_STATIC_ROWS in self.faults:
            capturer.host_buffer = LateHostBuffer(
                capturer.shape, capturer.device_buffer, self.device.compute.synchronize
            )
        state = DeviceState(
            plan.max_running_requests,
            plan.max_len,
            SamplingParams(config.temperature, config.top_p, config.top_k),
            hidden=_room_for_hidden(models, plan),
        )
        # A draft opts out before its backends are built, backends bind to the capturer that the process has,
        # and graphs are captured from backends: each takes what it finds.
        forwards = [
            self._forward_runner(config, plan, model, kv)
            for model, kv in zip(models, self.kv_caches, strict=True)
        ]
        draft = make_proposer(config, forwards[1] if len(forwards) == 2 else None, state, self.faults)
        forwards[0].initialize()
        if INIT_ORDER in self.faults:
            set_global_experts_capturer(capturer)
        self.runner = ModelRunner(
            forwards[0],
            state,
            self.device,
            draft=draft,
            delayed_copy=config.overlap,
            faults=self.faults,
        )
        self.collector = RowCollector(capturer, plan.num_slots, index)
        self.pool = self._make_pool(config, plan, has_cache=config.prefix_cache and prefix_cache)
        self.weight_updates = [
            WeightUpdate(step, load_update(config, name, target)) for step, name in config.weight_updates
        ]

    def _forward_runner(
        self, config: RunConfig, plan: Plan, model: Qwen3MoeForCausalLM, kv: KVCache
    ) -> ForwardRunner:
        if not config.graph:
            return ForwardRunner(model, kv, backend=config.backend, faults=self.faults)
        return GraphRunner(
            model,
            kv,
            backend=config.backend,
            max_rows=plan.max_tokens,
            prefill=kv is self.kv_caches[0],
            on_device=lambda capture: self.device.compute.run(capture, kind="graph-capture", step=0),
            faults=self.faults,
        )

    def _make_pool(self, config: RunConfig, plan: Plan, *, has_cache: bool) -> RequestPool:
        allocator, mover = PageAllocator(plan.num_slots), KVMover(self.kv_caches, self.device)
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

    def close(self) -> None:
        """Ends the device's threads and takes the capturer out of the process."""
        self.device.close()
        set_global_experts_capturer(None)


def load_models(config: RunConfig) -> list[Qwen3MoeForCausalLM]:
    """The target, and the draft model if the run has one.

    Raises:
        InputError: a model cannot be loaded, or the target is a draft head.
    """

    draft = draft_model_of(config.draft)
    target = _load_target(config, config.model)
    if isinstance(target, DraftHead):
        raise InputError(
            f"{config.model} is a draft head and cannot run alone", f"use it with --draft {config.model}"
        )
    if draft is None:
        return [target]
    return [target, load_model(draft, dtype=DTYPES[config.dtype], deterministic=config.deterministic)]


def _load_target(config: RunConfig, name: str) -> Qwen3MoeForCausalLM:
    """A model whose experts are held as the run wants those of its target."""
    return load_model(
        name,
        dtype=DTYPES[config.dtype],
        deterministic=config.deterministic,
        faults=ActiveFaults.of(config.faults),
        experts=ExpertOptions.of(config),
    )


def _room_for_hidden(models: list[Qwen3MoeForCausalLM], plan: Plan) -> torch.Tensor | None:
    """Has the target keep the hidden states that a draft head reads, and makes room for the last of them."""
    target, head = models[0], models[-1]
    if not isinstance(head, DraftHead):
        return None
    target.keep_hidden(head.target_layers(target.config.num_hidden_layers))
    width = len(target.kept_layers) * target.config.hidden_size
    return torch.zeros(plan.max_running_requests, width, dtype=target.dtype)


def load_update(config: RunConfig, name: str, target: Qwen3MoeForCausalLM) -> Qwen3MoeForCausalLM:
    """The model that a weight update brings.

    Raises:
        InputError: it cannot be loaded, or is not of the target's shape.
    """
    try:
        model = _load_target(config, name)
    except InputError as error:
        raise InputError(f"--weight-update {error.message}", error.hint) from error
    if model.config.essentials != target.config.essentials:
        raise InputError(
            f"--weight-update {name}: its config differs from that of {config.model}",
            "give a checkpoint of the same model",
        )
    return model


def kv_shapes(
    config: RunConfig, plan: Plan, models: Sequence[ModelConfig], seat: Seat | None = None
) -> list[KVShape]:
    """Sizes of the KV cache of each model; in the process `seat`, if there are several."""
    return [
        KVShape(
            num_layers=model.num_hidden_layers,
            num_slots=plan.num_slots,
            num_kv_heads=model.num_key_value_heads,
            head_dim=model.head_dim,
            dtype=DTYPES[config.dtype],
        )
        for model in models
    ]


def _capture_shape(config: RunConfig, plan: Plan, target: Qwen3MoeForCausalLM) -> CaptureShape:
    return CaptureShape(
        layer_ids=target.config.moe_layers,
        top_k=target.config.top_k,
        num_experts=target.config.num_experts
        + (config.redundant_experts if PHYSICAL_IDS in config.faults else 0),
        max_tokens=plan.max_tokens,
        num_slots=plan.num_slots,
        with_weights=config.weights,
        with_margins=config.margins,
    )
