"""Switches of one run: drawn, and such that they go together and leave a fault what it needs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from confusion_table.scenes import Scene
from moeinspect.runtime.builtin_names import NGRAM, RANDOM_SHARED
from moeinspect.runtime.faults import FAULTS, OWN_DRAFT, RETRACT_REROUTE
from moeinspect.runtime.memory.page_allocator import PAGE_SIZE

PROCESSES = 0.08
"""Share of the runs that start processes, beside those of faults that need them."""

_BUILTIN_LONGEST = 320
"""Positions that a request of the built-in traffic may reach at most, with the outputs drawn here."""


def draw_switches(rng: random.Random, scene: Scene, fault: str, drawn_prompts: bool) -> dict[str, Any]:
    """Fields of the run's configuration that a user names."""
    needs = FAULTS[fault].needs if fault else {}
    one = dict(_draw_scheduling(rng)) | _draw_draft(rng, scene, needs) | _draw_layers(rng, scene, needs)
    one |= _draw_processes(rng, needs, one_rank=bool(fault) and FAULTS[fault].one_rank)
    if fault == RETRACT_REROUTE:
        one["weight_update"] = f"{rng.randint(3, 12)}:{scene.update}"
    if not drawn_prompts:
        one["max_new_tokens"] = rng.randint(6, 16)
    one = {name: value for name, value in one.items() if not _defeats(name, value, needs)}
    if one.get("prefix_cache") is False or one.get("host_kv_slots", 0) < needs.get("host_kv_slots", 0):
        one.pop("host_kv_slots", None)
    if rng.random() < (0.6 if "host_kv_slots" in needs else 0.25):
        longest = scene.longest if drawn_prompts else _BUILTIN_LONGEST
        lookahead = 2 * int(one.get("num_draft_tokens", 4))
        one["num_kv_slots"] = longest + lookahead + rng.randint(1, 6) * PAGE_SIZE
    return one


def words(switches: Mapping[str, Any]) -> list[str]:
    """The words of a command line."""
    return [word for name, value in switches.items() for word in _words(name, value)]


def _words(name: str, value: object) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    return [flag, str(value)]


def _defeats(name: str, value: object, needs: Mapping[str, Any]) -> bool:
    """Whether a switch keeps a fault from what it needs."""
    return isinstance(needs.get(name), bool | str) and name != "draft" and value != needs[name]


def _draw_scheduling(rng: random.Random) -> Iterator[tuple[str, Any]]:
    if rng.random() < 0.6:
        yield "chunked_prefill_size", rng.choice((5, 8, 16, 24, 32, 48, 128))
    if rng.random() < 0.6:
        yield "max_running_requests", rng.choice((1, 2, 3, 4, 6))
    if rng.random() < 0.25:
        yield "overlap", False
    if rng.random() < 0.25:
        yield "prefix_cache", False
    if rng.random() < 0.3:
        yield "host_kv_slots", rng.choice((64, 256, 1024))
    if rng.random() < 0.3:
        yield "graph", True
    if rng.random() < 0.1:
        yield "stream", True


def _draw_draft(rng: random.Random, scene: Scene, needs: Mapping[str, Any]) -> dict[str, Any]:
    """With an embedded model a fault may turn the draft on by itself."""
    need = needs.get("draft")
    if need is None and rng.random() < 0.5:
        return {}
    drafts = scene.drafts[:1] if need == OWN_DRAFT else scene.drafts
    one: dict[str, Any] = {"draft": rng.choice(drafts)}
    if need is not None and not scene.is_folder and rng.random() < 0.5:
        one = {}
    tree = 2 if "draft_topk" in needs else 1
    if tree > 1 and one.get("draft") == NGRAM:
        one["draft"] = scene.drafts[2 if scene.drafts[0] != NGRAM else 1]
    if tree > 1 or (one.get("draft") != NGRAM and rng.random() < 0.4):
        one["draft_topk"] = rng.choice((2, 3, 4))
    if rng.random() < 0.5:
        one["num_draft_tokens"] = rng.randint(max(1, one.get("draft_topk", 1)), 7)
    if rng.random() < 0.15:
        one["adaptive_draft"] = True
    return one


def _draw_layers(rng: random.Random, scene: Scene, needs: Mapping[str, Any]) -> dict[str, Any]:
    one: dict[str, Any] = {}
    if rng.random() < 0.2:
        one["backend"] = "bypass"
    if rng.random() < (0.5 if "redundant_experts" in needs else 0.12):
        one["redundant_experts"] = rng.randint(1, 7)
        if rng.random() < 0.6:
            one["rebalance_interval"] = rng.choice((1, 3, 20))
    if scene.model == RANDOM_SHARED and "fused_shared_expert" not in needs and rng.random() < 0.5:
        one["fused_shared_expert"] = True
    return one


def _draw_processes(rng: random.Random, needs: Mapping[str, Any], *, one_rank: bool) -> dict[str, Any]:
    ranks = ("dp_size", "tp_size", "pp_size")
    needed = [name for name in (*ranks, "disagg") if name in needs]
    if not needed and rng.random() > PROCESSES:
        return {}
    one: dict[str, Any] = {}
    extra = rng.choice((*ranks, "disagg", "disagg")) if not needed or rng.random() < 0.2 else ""
    for name in dict.fromkeys((*needed, extra)):
        if name == "disagg" and "weight_updates" not in needs:
            one["disagg"] = True
            workers = rng.choice(("", "", "prefill_workers", "decode_workers"))
            one |= {workers: 2} if workers else {}
        elif name in ranks and not one_rank and not ("weight_updates" in needs and name == "dp_size"):
            one[name] = 3 if name == "dp_size" and rng.random() < 0.2 else 2
    return one
