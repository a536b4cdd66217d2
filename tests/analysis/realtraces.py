"""Recorded answers of real engines as traces, for tests only; absent recordings skip the test.

The recordings are not part of the repository. `MOEINSPECT_RECORDINGS` names the folder that holds
`fixtures/` and `oracle/`; without it, one beside the repository is looked for.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analysis.tracefactory import make_facts, make_trace
from numpy.typing import NDArray

from moeinspect.trace.schema import ModelFacts, Origin, RequestRecord, Trace

ROOT = Path(__file__).resolve().parents[2]
SGLANG_FACTS = make_facts(4, 32, 4, layer_axis="all")
VLLM_FACTS = {"e320": make_facts(4, 320, 4, layer_axis="all")}


def recordings() -> Path:
    """The folder with the recordings; skips the test where there is none."""
    named = os.environ.get("MOEINSPECT_RECORDINGS")
    candidates = [Path(named)] if named else sorted(p.parent for p in ROOT.parent.glob("*/fixtures"))
    for folder in candidates:
        if (folder / "fixtures" / "sglang").is_dir():
            return folder
    pytest.skip("no recordings of real engines here")


def imported(
    request_id: str,
    prompt: Sequence[int],
    output: Sequence[int],
    ids: NDArray[Any],
    *,
    sample: int = 0,
    start_pos: int = 0,
) -> RequestRecord:
    """A request as an importer would give it: no worker, step or slot is known."""
    n = len(ids)
    return RequestRecord(
        id=request_id,
        sample=sample,
        start_pos=start_pos,
        prompt_ids=np.asarray(prompt, dtype=np.int32),
        output_ids=np.asarray(output, dtype=np.int32),
        expert_ids=ids,
        validity=np.zeros(n, dtype=np.uint8),
        origin=np.full(n, Origin.IMPORTED, dtype=np.uint8),
        worker=np.zeros(n, dtype=np.uint16),
        step=np.zeros(n, dtype=np.int32),
        slot=np.full(n, -1, dtype=np.int32),
        row_weight_version=np.zeros(n, dtype=np.uint16),
    )


def sglang_trace(name: str) -> Trace:
    """`fixtures/sglang/NAME.jsonl.gz`: base64 of int32 [n, layers, k] in each answer's meta_info."""
    path = recordings() / "fixtures" / "sglang" / f"{name}.jsonl.gz"
    facts = SGLANG_FACTS
    records: list[RequestRecord] = []
    with gzip.open(path, "rt") as lines:
        for answer in map(json.loads, lines):
            payload = (answer.get("meta_info") or {}).get("routed_experts")
            if not payload:
                continue
            flat = np.frombuffer(base64.b64decode(payload), dtype=np.int32)
            ids = flat.reshape(-1, facts.num_hidden_layers, facts.top_k)
            start = int(answer["request"].get("routed_experts_start_len") or 0)
            records.append(
                imported(
                    f"{answer['phase']}-{answer['idx']}",
                    answer["request"]["input_ids"],
                    answer["output_ids"],
                    ids,
                    start_pos=start,
                )
            )
    return make_trace(records, facts, run={"engine": "sglang", "slot_order": "unknown"}, path=path.name)


def vllm_trace(name: str) -> Trace:
    """`fixtures/vllm/NAME.json`: base64 of a .npy file [n, layers, k] in each choice."""
    path = recordings() / "fixtures" / "vllm" / f"{name}.json"
    facts = next((f for key, f in VLLM_FACTS.items() if key in name), make_facts(4, 16, 4, layer_axis="all"))
    facts = _vllm_facts(facts, path)
    records = [record for answer in json.loads(path.read_text()) for record in _vllm_records(answer)]
    return make_trace(records, facts, run={"engine": "vllm", "slot_order": "unknown"}, path=path.name)


def _vllm_facts(facts: ModelFacts, path: Path) -> ModelFacts:
    """Layers that hold zeros in every row of a healthy recording are the model's dense layers."""
    if "allzero" in path.name:
        return facts
    ids = np.concatenate([r.expert_ids for a in json.loads(path.read_text()) for r in _vllm_records(a)])
    used = np.flatnonzero(ids.any(axis=(0, 2)))
    return make_facts(
        ids.shape[1], facts.num_experts, ids.shape[2], layer_axis="all", moe_layers=used.tolist()
    )


def _vllm_records(answer: dict[str, Any]) -> Iterator[RequestRecord]:
    response = answer.get("response")
    if not isinstance(response, dict):
        return
    for choice in response.get("choices", []):
        payload = choice.get("routed_experts")
        prompt = (
            choice.get("prompt_token_ids")
            or response.get("prompt_token_ids")
            or answer["request"].get("token_ids")
        )
        if payload and prompt:
            ids = np.load(io.BytesIO(base64.b64decode(payload)))
            start = len(prompt) + len(choice["token_ids"]) - 1 - len(ids)
            yield imported(
                answer["tag"],
                prompt,
                choice["token_ids"],
                ids,
                sample=int(choice.get("index") or 0),
                start_pos=start,
            )


def oracle_trace(name: str) -> Trace:
    """`oracle/expected/NAME.npz`: one request of transformers, 48 prompt and 16 output tokens."""
    with np.load(recordings() / "oracle" / "expected" / f"{name}.npz") as data:
        tokens, prompt_len = data["tokens"][0], int(data["prompt_len"])
        ids, moe_layers = data["ids"][0].astype(np.int64), data["moe_layers"].tolist()
        experts = data["router_logits"].shape[-1]
    facts = make_facts(ids.shape[1], experts, ids.shape[2], layer_axis="all", moe_layers=moe_layers)
    dense = [layer for layer in range(ids.shape[1]) if layer not in moe_layers]
    ids[:, dense] = facts.sentinel
    record = imported(name, tokens[:prompt_len], tokens[prompt_len:], ids)
    return make_trace([record], facts, run={"engine": "transformers"}, path=name)
