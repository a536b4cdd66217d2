"""What is known about each cause: where it was seen, and the switch that makes it go away."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause. `local` are options of `moeinspect capture` that avoid it.

    `engine` says what to do where any other engine answered, `sglang` and `vllm` in the options of that one,
    if there is one.
    """

    reference: str
    engine: str
    local: tuple[str, ...] = ()
    sglang: str = ""
    vllm: str = ""

    def for_engine(self, name: str) -> str:
        """What to do where the engine of this name answered."""
        return {"sglang": self.sglang, "vllm": self.vllm}.get(name.lower()) or self.engine


_WITHOUT_DRAFT = "serve without the draft"
_WITHOUT_DRAFT_SGLANG = "start the server without --speculative-algorithm"
_WITHOUT_DRAFT_VLLM = "start the server without --speculative-config"
_WITHOUT_OVERLAP = "switch overlapped (asynchronous) scheduling off and capture again"
_WITHOUT_OVERLAP_SGLANG = "start the server with --disable-overlap-schedule and capture again"
_WITHOUT_OVERLAP_VLLM = "start the server with --no-async-scheduling and capture again"
_WITHOUT_GRAPHS = "switch CUDA graphs off and capture again"
_WITHOUT_GRAPHS_SGLANG = "start the server with --disable-cuda-graph and capture again"
_WITHOUT_GRAPHS_VLLM = "start the server with --enforce-eager and capture again"

CAUSES: dict[str, Cause] = {
    "skip-finalize-prefill": Cause(
        "sglang#23885 (merged 2026-04-27; the delayed copy came with #22911)",
        "switch overlapped scheduling off where prompts are computed, and capture again",
        ("--no-overlap",),
        sglang="start the prefill server with --disable-overlap-schedule, or update to a release with "
        "sglang#23885",
    ),
    "no-merge": Cause(
        "sglang#22916, vllm-project/router#184",
        "send the request to a server without disaggregation, or use a balancer that merges the rows of the "
        "prefill server",
        ("--no-disagg",),
        sglang="send the request to a server without --disaggregation-mode, or use a balancer that merges "
        "the rows of the prefill server (sglang#22916; non-streaming requests only)",
        vllm="send the request to a server without --kv-transfer-config, or use a router that joins the rows "
        "of the prefill server (vllm-project/router#184)",
    ),
    "draft-capture": Cause(
        "sglang#26980 (merged 2026-06-01, cherry-picked as #29685), vllm#48622 (merged 2026-07-14)",
        _WITHOUT_DRAFT,
        ("--draft", "none"),
        sglang=f"{_WITHOUT_DRAFT_SGLANG}, or update to a release with sglang#26980",
        vllm=f"{_WITHOUT_DRAFT_VLLM}, or update to a release with vllm#48622",
    ),
    "draft-forward-end": Cause(
        "sglang#26980",
        _WITHOUT_DRAFT,
        ("--draft", "none"),
        sglang=f"{_WITHOUT_DRAFT_SGLANG}, or update to a release with sglang#26980",
        vllm=_WITHOUT_DRAFT_VLLM,
    ),
    "draft-recreates-capturer": Cause(
        "sglang#26980",
        _WITHOUT_DRAFT,
        ("--draft", "none"),
        sglang=f"{_WITHOUT_DRAFT_SGLANG}, or update to a release with sglang#26980",
        vllm=_WITHOUT_DRAFT_VLLM,
    ),
    "draft-optout-late": Cause(
        "sglang#26980",
        f"{_WITHOUT_GRAPHS}: the draft has to opt out before they are captured",
        ("--no-graph",),
        sglang=f"{_WITHOUT_GRAPHS_SGLANG}: the draft has to opt out before graphs are captured",
        vllm=f"{_WITHOUT_GRAPHS_VLLM}: the draft has to opt out before graphs are captured",
    ),
    "bypass-drops-flag": Cause(
        "sglang#26980",
        "choose a MoE backend that does not compute top-k inside, and capture again",
        ("--backend", "torch"),
        sglang="start the server with --moe-runner-backend triton and capture again",
        vllm="start the server with --moe-backend triton and capture again",
    ),
    "ungated-backend": Cause(
        "sglang#26980",
        "choose another MoE backend, and capture again",
        ("--backend", "torch"),
        sglang="start the server with --moe-runner-backend triton and capture again",
        vllm="start the server with --moe-backend triton and capture again",
    ),
    "buffer-reuse": Cause(
        "vllm-ascend#10717, vllm-ascend#10727",
        _WITHOUT_OVERLAP,
        ("--no-overlap",),
        sglang=_WITHOUT_OVERLAP_SGLANG,
        vllm=_WITHOUT_OVERLAP_VLLM,
    ),
    "verify-dropped": Cause(
        "sglang#37949, sglang#39027",
        "serve without the draft, or without overlapped scheduling",
        ("--draft", "none"),
        sglang=f"{_WITHOUT_DRAFT_SGLANG}, or with --disable-overlap-schedule",
        vllm=_WITHOUT_DRAFT_VLLM,
    ),
    "tree-rows": Cause(
        "sglang#37949",
        "draft a chain instead of a tree",
        ("--draft-topk", "1"),
        sglang="start the server with --speculative-eagle-topk 1 (a chain instead of a tree)",
        vllm="leave speculative_token_tree out of --speculative-config (a chain instead of a tree)",
    ),
    "read-early": Cause(
        "vllm-ascend#10717",
        _WITHOUT_OVERLAP,
        ("--no-overlap",),
        sglang=_WITHOUT_OVERLAP_SGLANG,
        vllm=_WITHOUT_OVERLAP_VLLM,
    ),
    "stale-slot": Cause(
        "sglang#26975, sglang#39027",
        "switch the prefix cache off, or what moves its KV to the host and back, and capture again",
        ("--no-prefix-cache",),
        sglang="start the server without --enable-hierarchical-cache, or with --disable-radix-cache, and "
        "capture again",
        vllm="start the server without --kv-offloading-size and --kv-transfer-config, and capture again",
    ),
    "retract-reroute": Cause(
        "sglang#24001, miles#3277",
        "finish or abort running requests before the weights are updated, or keep the first rows",
    ),
    "dp-slice": Cause(
        "sglang#26123, sglang#18642",
        "serve with one data-parallel rank",
        ("--dp-size", "1"),
        sglang="serve with one data-parallel rank (--dp-size 1, no --enable-dp-attention)",
        vllm="serve with one data-parallel rank (--data-parallel-size 1)",
    ),
    "tp-shard": Cause(
        "vllm-ascend#15451, sglang#18642",
        "serve without sharding tokens over ranks",
        ("--tp-size", "1"),
        sglang="serve with one tensor-parallel rank (--tp-size 1), or without --moe-a2a-backend",
        vllm="serve with one tensor-parallel rank (--tensor-parallel-size 1)",
    ),
    "batch-index-swap": Cause(
        "sglang#26423 (merged 2026-05-26), slime#1145",
        "ask for routed experts in every request of the batch",
        sglang="set return_routed_experts in every request of the batch, or update to a release with "
        "sglang#26423",
    ),
    "padded-rows": Cause(
        "sglang#36404 (merged 2026-08-26)",
        "switch CUDA graphs off and send prompts that fill no chunk twice",
        ("--no-graph",),
        sglang="start the server with --disable-cuda-graph, or update to a release with sglang#36404",
        vllm=_WITHOUT_GRAPHS_VLLM,
    ),
    "graph-static-rows": Cause(
        "sglang#12162",
        _WITHOUT_GRAPHS,
        ("--no-graph",),
        sglang=_WITHOUT_GRAPHS_SGLANG,
        vllm=_WITHOUT_GRAPHS_VLLM,
    ),
    "hash-layer-uncaptured": Cause(
        "sglang#29040", "treat these layers as exempt: their hash router never calls the capturer"
    ),
    "pp-stage": Cause(
        "vllm#35623",
        "serve without pipeline parallelism",
        ("--pp-size", "1"),
        sglang="serve without pipeline parallelism (--pp-size 1)",
        vllm="serve without pipeline parallelism (--pipeline-parallel-size 1)",
    ),
    "layer-shift": Cause(
        "verl#5037, verl#5452", "check which layer axis the consumer counts: all layers, or MoE layers only"
    ),
    "row-shift": Cause(
        "SkyRL#1908, vllm#39568", "check which token the first row belongs to: row i is the token fed at i"
    ),
    "merge-misaligned": Cause(
        "static reading of sglang's balancer",
        "ask both servers for rows from the same position on",
        ("--no-disagg",),
        sglang="send both servers the same routed_experts_start_len",
        vllm="send both servers the same routed_experts_prompt_start (versions before 0.28 ignore it)",
    ),
    "cp-slice": Cause("verl, slime", "train without context parallelism and packing, then compare again"),
    "replay-noop": Cause(
        "verl#7340, prime-rl#2738",
        "count the routers that were handed rows in each step of the model that trains: one a layer",
    ),
    "prompt-truncated": Cause("verl#6089", "check how many prompt tokens the consumer kept"),
    "kernel-uncaptured": Cause(
        "vllm#44116, flashinfer#3382",
        "choose another MoE backend: the fused kernel exports no top-k",
        ("--backend", "torch"),
        sglang="start the server with --moe-runner-backend triton: the fused kernel exports no top-k",
        vllm="start the server with --moe-backend triton, or update to 0.27 or later, which refuses kernels "
        "that export no top-k",
    ),
    "init-order": Cause(
        "vllm#33013",
        "check that the capturer is bound before the layers are built",
        vllm="update to 0.16 or later, which binds the capturer after the layers are built",
    ),
    "physical-ids": Cause(
        "sglang#17025, vllm#33013",
        "switch expert placement (EPLB) and redundant experts off, or record ids before the mapping",
        ("--redundant-experts", "0"),
        sglang="start the server without --enable-eplb, --init-expert-location and "
        "--ep-num-redundant-experts",
        vllm="start the server without --enable-eplb, or update to 0.16 or later",
    ),
    "shared-expert-column": Cause(
        "sglang#9499, sglang#33889",
        "switch the fusion of shared experts off and capture again",
        ("--no-fused-shared-expert",),
        sglang="start the server with --disable-shared-experts-fusion and capture again",
    ),
    "surplus-after-stop": Cause(
        "sglang#26126 (merged 2026-05-22)",
        "serve without a draft",
        ("--draft", "none"),
        sglang="update to a release with sglang#26126, or serve without --speculative-algorithm",
        vllm="update to 0.32 or later, or serve without --speculative-config",
    ),
    "double-concat": Cause(
        "verl#6029, verl#7158, strands-sglang#72", "check whether the consumer joins full answers of turns"
    ),
    "prefill-only-short": Cause(
        "sglang#20964 (open)",
        "ask for at least one new token",
        sglang="ask for at least one new token (max_new_tokens 1)",
    ),
    "missing-request": Cause(
        "slime#1145, miles#407",
        "check that every request asks for routed experts and the router passes it on",
        sglang="start the server with --enable-return-routed-experts, set return_routed_experts in every "
        "request, and check that the router passes it on",
        vllm="start the server with --enable-return-routed-experts, and ask without streaming and beam "
        "search: those answers carry no rows",
    ),
    "partial-sentinel": Cause("miles#2770", "drop these rows: their padding stands beside real ids"),
    "filler-as-real": Cause(
        "slime, miles#2697, NeMo-RL, prime-rl", "compare before the trainer pads: these rows are filler"
    ),
    "turn-gap": Cause(
        "prime-rl#1807, miles#1672",
        "let the next turn's answer bring the row of a turn's last token, and end at a turn without rows",
    ),
    "nan-logits": Cause(
        "seen on SGLang 0.5.17", "check that the checkpoint holds the weights of the first such layer"
    ),
    "uint8-wrap": Cause(
        "verl#7407, prime-rl#3051", "store the ids as uint16: the model has over 256 experts"
    ),
    "mtp-alias": Cause(
        "NeMo-RL#3903, slime#1556", "leave the multi-token-prediction layer out of the replay"
    ),
    "numerics": Cause(
        "Thinking Machines 2025, batch-invariant kernels",
        "repeat both runs on one machine in deterministic mode",
        ("--deterministic",),
        sglang="repeat both runs with --enable-deterministic-inference on one machine, or give a second "
        "baseline as --noise-floor",
    ),
    "tokens-diverged": Cause("", "feed both runs the same tokens, or compare up to the first difference"),
    "unknown": Cause(
        "",
        "switch draft, disaggregation and overlap off, one after another, and compare again",
        sglang="leave out --speculative-algorithm and --disaggregation-mode and add "
        "--disable-overlap-schedule, --disable-cuda-graph and --disable-radix-cache, one after another, and "
        "compare again",
        vllm="leave out --speculative-config and --kv-transfer-config and add --no-async-scheduling, "
        "--enforce-eager and (up to 0.30) --no-enable-prefix-caching, one after another, and compare again",
    ),
}
"""By name of the fault catalogue; `numerics`, `tokens-diverged` and `unknown` beside them."""


def references_of(names: Iterable[str]) -> str:
    """Where causes were seen, each report once."""
    return "; ".join(dict.fromkeys(CAUSES[name].reference for name in names if CAUSES[name].reference))
