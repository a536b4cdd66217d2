"""What is known about each cause: where it was seen, and the switch that makes it go away."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause. `local` are options of `moeinspect capture` that avoid it, `engine` says it for engines."""

    reference: str
    engine: str
    local: tuple[str, ...] = ()


CAUSES: dict[str, Cause] = {
    "skip-finalize-prefill": Cause(
        "sglang#23885 (merged 2026-04-27; the delayed copy came with #22911)",
        "start the prefill server with --disable-overlap-schedule, or update to a release with sglang#23885",
        ("--no-overlap",),
    ),
    "no-merge": Cause(
        "sglang#22916, vllm-project/router#184",
        "send the request to a server without disaggregation, or use a balancer that merges the rows of the "
        "prefill server (sglang#22916; non-streaming requests only)",
        ("--no-disagg",),
    ),
    "draft-capture": Cause(
        "sglang#26980 (merged 2026-06-01, cherry-picked as #29685), vllm#48622 (merged 2026-07-14)",
        "start the server without the draft model, or update to a release with sglang#26980 or vllm#48622",
        ("--draft", "none"),
    ),
    "draft-forward-end": Cause(
        "sglang#26980",
        "start the server without the draft model, or update to a release with sglang#26980",
        ("--draft", "none"),
    ),
    "draft-recreates-capturer": Cause(
        "sglang#26980",
        "start the server without the draft model, or update to a release with sglang#26980",
        ("--draft", "none"),
    ),
    "draft-optout-late": Cause(
        "sglang#26980",
        "switch CUDA graphs off (--disable-cuda-graph) and capture again: the opt-out has to come first",
        ("--no-graph",),
    ),
    "bypass-drops-flag": Cause(
        "sglang#26980",
        "choose a MoE backend that does not compute top-k inside, and capture again",
        ("--backend", "torch"),
    ),
    "ungated-backend": Cause(
        "sglang#26980", "choose another MoE backend and capture again", ("--backend", "torch")
    ),
    "buffer-reuse": Cause(
        "vllm-ascend#10717, vllm-ascend#10727",
        "switch overlap (asynchronous) scheduling off and capture again",
        ("--no-overlap",),
    ),
    "verify-dropped": Cause(
        "sglang#37949, sglang#39027",
        "start the server without speculative decoding, or with --disable-overlap-schedule",
        ("--draft", "none"),
    ),
    "tree-rows": Cause(
        "sglang#37949",
        "start the server with --speculative-eagle-topk 1 (a chain instead of a tree)",
        ("--draft-topk", "1"),
    ),
    "read-early": Cause(
        "vllm-ascend#10717",
        "switch overlap (asynchronous) scheduling off and capture again",
        ("--no-overlap",),
    ),
    "stale-slot": Cause(
        "sglang#26975, sglang#39027",
        "switch the prefix cache's host tier off (--enable-hierarchical-cache) and capture again",
        ("--no-prefix-cache",),
    ),
    "retract-reroute": Cause(
        "sglang#24001, miles#3277",
        "finish or abort running requests before the weights are updated, or keep the first rows",
    ),
    "dp-slice": Cause(
        "sglang#26123, sglang#18642", "serve with one data-parallel rank (--dp-size 1)", ("--dp-size", "1")
    ),
    "tp-shard": Cause(
        "vllm-ascend#15451, sglang#18642", "serve without sharding tokens (--tp-size 1)", ("--tp-size", "1")
    ),
    "batch-index-swap": Cause(
        "sglang#26423 (merged 2026-05-26), slime#1145",
        "ask for routed experts in every request of the batch",
    ),
    "padded-rows": Cause(
        "sglang#36404 (merged 2026-08-26)",
        "switch CUDA graphs off and send prompts that fill no chunk twice",
        ("--no-graph",),
    ),
    "graph-static-rows": Cause("sglang#12162", "switch CUDA graphs off and capture again", ("--no-graph",)),
    "hash-layer-uncaptured": Cause(
        "sglang#29040", "treat these layers as exempt: their hash router never calls the capturer"
    ),
    "pp-stage": Cause("vllm#35623", "serve without pipeline parallelism (--pp-size 1)", ("--pp-size", "1")),
    "layer-shift": Cause(
        "verl#5037, verl#5452", "check which layer axis the consumer counts: all layers, or MoE layers only"
    ),
    "row-shift": Cause(
        "SkyRL#1908, vllm#39568", "check which token the first row belongs to: row i is the token fed at i"
    ),
    "merge-misaligned": Cause(
        "static reading of sglang's balancer",
        "ask both servers for the same routed_experts_start_len",
        ("--no-disagg",),
    ),
    "cp-slice": Cause("verl, slime", "train without context parallelism and packing, then compare again"),
    "prompt-truncated": Cause("verl#6089", "check how many prompt tokens the consumer kept"),
    "kernel-uncaptured": Cause(
        "vllm#44116, flashinfer#3382",
        "choose another MoE backend: the fused kernel exports no top-k",
        ("--backend", "torch"),
    ),
    "init-order": Cause("vllm#33013", "check that the capturer is bound before the layers are built"),
    "physical-ids": Cause(
        "sglang#17025, vllm#33013",
        "switch expert placement (EPLB) and redundant experts off, or record ids before the mapping",
        ("--redundant-experts", "0"),
    ),
    "shared-expert-column": Cause(
        "sglang#9499, sglang#33889",
        "switch the fusion of shared experts off (--disable-shared-experts-fusion) and capture again",
        ("--no-fused-shared-expert",),
    ),
    "surplus-after-stop": Cause(
        "sglang#26126 (merged 2026-05-22)",
        "update to a release with sglang#26126, or serve without a draft",
        ("--draft", "none"),
    ),
    "double-concat": Cause(
        "verl#6029, verl#7158, strands-sglang#72", "check whether the consumer joins full answers of turns"
    ),
    "prefill-only-short": Cause("sglang#20964 (open)", "ask for at least one new token"),
    "missing-request": Cause(
        "slime#1145, miles#407",
        "check that every request asks for routed experts and the router passes it on",
    ),
    "partial-sentinel": Cause("miles#2770", "drop these rows: their padding stands beside real ids"),
    "filler-as-real": Cause(
        "slime, miles#2697, NeMo-RL, prime-rl", "compare before the trainer pads: these rows are filler"
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
    ),
    "tokens-diverged": Cause("", "feed both runs the same tokens, or compare up to the first difference"),
    "unknown": Cause(
        "", "switch draft, disaggregation and overlap off, one after another, and compare again"
    ),
}
"""By name of the fault catalogue; `numerics`, `tokens-diverged` and `unknown` beside them."""
