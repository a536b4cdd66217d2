"""The faults that the runtime can commit by their real mechanism, one flag at the place where it happens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moeinspect.runtime.builtin_names import RANDOM_HASH, RANDOM_SHARED
from moeinspect.runtime.traffic import CHUNK_SEAMS, MIXED_OPT_IN

SKIP_FINALIZE_PREFILL = "skip-finalize-prefill"
DRAFT_CAPTURE = "draft-capture"
NO_MERGE = "no-merge"
BUFFER_REUSE = "buffer-reuse"
DRAFT_OPTOUT_LATE = "draft-optout-late"
BYPASS_DROPS_FLAG = "bypass-drops-flag"
UNGATED_BACKEND = "ungated-backend"
KERNEL_UNCAPTURED = "kernel-uncaptured"
PADDED_ROWS = "padded-rows"
GRAPH_STATIC_ROWS = "graph-static-rows"
NAN_LOGITS = "nan-logits"
TREE_ROWS = "tree-rows"
VERIFY_DROPPED = "verify-dropped"
DRAFT_FORWARD_END = "draft-forward-end"
DRAFT_RECREATES_CAPTURER = "draft-recreates-capturer"
READ_EARLY = "read-early"
STALE_SLOT = "stale-slot"
SURPLUS_AFTER_STOP = "surplus-after-stop"
PREFILL_ONLY_SHORT = "prefill-only-short"
RETRACT_REROUTE = "retract-reroute"
MERGE_MISALIGNED = "merge-misaligned"
BATCH_INDEX_SWAP = "batch-index-swap"
DP_SLICE = "dp-slice"
TP_SHARD = "tp-shard"
PP_STAGE = "pp-stage"
PHYSICAL_IDS = "physical-ids"
SHARED_EXPERT_COLUMN = "shared-expert-column"
INIT_ORDER = "init-order"
HASH_LAYER_UNCAPTURED = "hash-layer-uncaptured"

DRAFT_IS_CAPTURED = (DRAFT_CAPTURE, DRAFT_OPTOUT_LATE, BYPASS_DROPS_FLAG, UNGATED_BACKEND)
"""Faults under which a draft's choices are stored in the target's rows: both must choose as many experts."""

OWN_DRAFT = "the draft made for the target"
"""A need that a MoE draft fulfils; an embedded target's own is turned on."""

ANY_DRAFT = "a draft, n-gram included"
"""A need that whatever drafts fulfils; an embedded target's own draft is turned on, else n-gram."""

OWN_UPDATE = "newer weights of the target"
"""A need that a weight update fulfils; that of an embedded target is turned on."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One known bug.

    `needs` maps a `RunConfig` field to the value without which nothing goes wrong; of a number, to the
    least; an embedded `model` is run where the user named none. `traffic` names the requests
    (`traffic.TRAFFICS`) that are brought along where the user brings none. `one_rank`: only a worker that is
    one process commits it.
    """

    name: str
    upstream: str
    summary: str
    needs: Mapping[str, Any] = field(default_factory=dict)
    traffic: str = ""
    one_rank: bool = False


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            SKIP_FINALIZE_PREFILL,
            "sglang#23885",
            "the prefill worker never finalizes its delayed copy: prompt rows stay zero",
            {"disagg": True, "overlap": True},
        ),
        Fault(
            DRAFT_CAPTURE,
            "sglang#26980, #29685, vllm#48622",
            "no guard keeps the draft model out of the capturer: its layers overwrite the target's",
            {"draft": OWN_DRAFT},
        ),
        Fault(
            DRAFT_FORWARD_END,
            "sglang#26980",
            "the draft's forwards end like the target's: what the target left is stored under other slots",
            {"draft": OWN_DRAFT, "draft_topk": 2, "overlap": True},
        ),
        Fault(
            DRAFT_RECREATES_CAPTURER,
            "sglang#26980",
            "a draft's start replaces the process-wide capturer by one of its own shape: layers are missing",
            {"draft": OWN_DRAFT},
        ),
        Fault(
            TREE_ROWS,
            "sglang#37949",
            "the accepted path of a draft tree is compacted in KV and not in the captured rows",
            {"draft": ANY_DRAFT, "draft_topk": 2},
        ),
        Fault(
            VERIFY_DROPPED,
            "sglang#37949, #39027",
            "the verify result drops its capture output: output rows are never stored",
            {"draft": ANY_DRAFT, "overlap": True},
        ),
        Fault(
            NO_MERGE,
            "vllm router#184, sglang#22916",
            "the balancer returns the decode worker's rows unmerged: prompt rows were never computed there",
            {"disagg": True},
        ),
        Fault(
            MERGE_MISALIGNED,
            "byte splices keyed on length",
            "the two sides' rows are joined by length, with no look at where the decode side's begin",
            {"disagg": True},
        ),
        Fault(
            BATCH_INDEX_SWAP,
            "sglang#26423, slime#1145",
            "the list of results holds those who asked alone and is read by batch position",
            traffic=MIXED_OPT_IN,
        ),
        Fault(
            BUFFER_REUSE,
            "vllm-ascend#10717, #10727",
            "captured rows are not cloned before the next forward overwrites the buffer",
            {"overlap": True},
        ),
        Fault(
            READ_EARLY,
            "vllm-ascend#10717, #10727",
            "rows are collected before the copy of the last step has arrived",
            {"overlap": True},
        ),
        Fault(
            STALE_SLOT,
            "sglang#26975, #39027",
            "KV comes back from the host tier into other slots, its rows stay behind",
            {"prefix_cache": True, "host_kv_slots": 1024},
            traffic="shared-prefixes",
        ),
        Fault(
            SURPLUS_AFTER_STOP,
            "sglang#26126",
            "rows are counted before the stop inside an accepted run was applied",
            {"draft": ANY_DRAFT},
            traffic="stops",
        ),
        Fault(
            PREFILL_ONLY_SHORT,
            "sglang#20964",
            "a request without new tokens gets one row too few",
            traffic="prefill-only",
        ),
        Fault(
            RETRACT_REROUTE,
            "sglang#24001, miles#3277",
            "after a weight update the rows of a retracted request are those of the new weights",
            {"weight_updates": OWN_UPDATE},
        ),
        Fault(
            DRAFT_OPTOUT_LATE,
            "sglang#26980",
            "the draft opts out after its graphs were captured: replays go on writing into the target's rows",
            {"draft": OWN_DRAFT, "graph": True},
        ),
        Fault(
            BYPASS_DROPS_FLAG,
            "sglang#26980",
            "the fused backend rebuilds its top-k configuration and forgets the draft's opt-out",
            {"draft": OWN_DRAFT, "backend": "bypass"},
        ),
        Fault(
            UNGATED_BACKEND,
            "sglang#26980",
            "the fused backend calls the capturer directly, past the gate that honours the draft's opt-out",
            {"draft": OWN_DRAFT, "backend": "bypass"},
        ),
        Fault(
            KERNEL_UNCAPTURED,
            "vllm#44116, flashinfer#3382",
            "the fused kernel does not export its top-k: nothing is ever captured",
            {"backend": "bypass"},
        ),
        Fault(
            INIT_ORDER,
            "vllm#33013",
            "the capturer is made after the layers were built: they never found one, and nothing is captured",
        ),
        Fault(
            HASH_LAYER_UNCAPTURED,
            "sglang#29040",
            "the router of hash-routed layers never calls the capturer: these layers are zero",
            {"model": RANDOM_HASH},
        ),
        Fault(
            PADDED_ROWS,
            "sglang#36404",
            "prefill graphs capture before padding is masked: it lands under the slots of an older chunk",
            {"graph": True},
            CHUNK_SEAMS,
            one_rank=True,
        ),
        Fault(
            GRAPH_STATIC_ROWS,
            "sglang#12162",
            "the graphs' static capture buffer is read once, late: a request's decode rows are all the same",
            {"graph": True},
        ),
        Fault(
            PHYSICAL_IDS,
            "sglang#17025, vllm#33013",
            "ids are captured after the map from experts to physical slots",
            {"redundant_experts": 4},
        ),
        Fault(
            SHARED_EXPERT_COLUMN,
            "sglang#9499, #33889",
            "the column of the fused shared expert is not stripped: rows are K + 1 wide",
            {"model": RANDOM_SHARED, "fused_shared_expert": True},
        ),
        Fault(
            DP_SLICE,
            "sglang#26123, #18642",
            "a data-parallel rank's slice of the common rows is cut as if each request before it had one row",
            {"dp_size": 2, "draft": ANY_DRAFT},
        ),
        Fault(
            TP_SHARD,
            "vllm-ascend#15451, sglang#18642",
            "captured rows of the other tensor-parallel ranks are never gathered: a zero tail in each step",
            {"tp_size": 2},
        ),
        Fault(
            PP_STAGE,
            "vllm#35623",
            "what later pipeline stages captured is never aggregated: their layers are zero",
            {"pp_size": 2},
        ),
        Fault(
            NAN_LOGITS,
            "SGLang 0.5.17 with mlp_only_layers",
            "the first dense MLP is not loaded: router logits are NaN, and every cell counts up from 0",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class ActiveFaults:
    """The faults of this run, asked for by name where they happen."""

    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, names: Iterable[str]) -> ActiveFaults:
        """From the names of a run's configuration."""
        return cls(frozenset(names))

    def __contains__(self, name: str) -> bool:
        return name in self.names


NO_FAULTS = ActiveFaults()
"""A healthy run."""
