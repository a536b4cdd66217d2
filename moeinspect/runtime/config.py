"""Every option of a run, resolved; what is recorded as the trace's `run_config`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Options of one run of the local runtime.

    `model` and `draft` are a checkpoint folder or a `builtin:` name; `draft` may be `ngram` as well.
    `num_kv_slots` None lets the runtime choose enough for `max_running_requests`. `weight_updates` are pairs
    of a step and the checkpoint whose weights serve from that step on. `traffic` names the requests that run
    where the user brought none; none of them: the built-in prompts. `dp_size`, `tp_size` and `pp_size` are
    the ranks of every worker, each a process (see `parallel.layout`). `redundant_experts` are copies of
    loaded experts, which move every `rebalance_interval` forwards. `faults` never enters the recorded
    `run_config`.
    """

    model: str = "builtin:tiny"
    draft: str | None = None
    overlap: bool = True
    disagg: bool = False
    num_draft_tokens: int = 4
    draft_topk: int = 1
    adaptive_draft: bool = False
    prefix_cache: bool = True
    host_kv_slots: int = 0
    graph: bool = False
    prefill_workers: int = 1
    decode_workers: int = 1
    transfer: str = "shm"
    dp_size: int = 1
    tp_size: int = 1
    pp_size: int = 1
    redundant_experts: int = 0
    rebalance_interval: int = 8
    fused_shared_expert: bool = False
    stream: bool = False
    weight_updates: tuple[tuple[int, str], ...] = ()
    chunked_prefill_size: int = 64
    max_running_requests: int = 16
    num_kv_slots: int | None = None
    max_new_tokens: int = 32
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    seed: int = 0
    traffic: tuple[str, ...] = ()
    target_only: bool = False
    deterministic: bool = True
    backend: str = "torch"
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    weights: bool = False
    margins: bool = False
    faults: tuple[str, ...] = ()
