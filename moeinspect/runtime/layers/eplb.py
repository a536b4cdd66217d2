"""Which experts get copies and which physical slot holds which expert, from the experts' loads.

Mirrors EPLB (DeepSeek's `eplb.py`, in SGLang `sglang/srt/eplb/eplb_algorithms/deepseek.py`) with one group
and one node: copies go to the expert with the largest load per copy, then slots are packed onto ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heapreplace


def balanced_placement(load: Sequence[int], slots_of_rank: Sequence[int]) -> list[int]:
    """The expert in each physical slot, rank by rank.

    `load` [E] counts how often each expert was chosen, `slots_of_rank` are the slots of each rank, E or more
    together. Ties go to the expert or rank that comes first, so everybody who counted the same gets the same.
    """
    experts = _replicated(load, sum(slots_of_rank))
    copies = Counter(experts)
    share = [load[expert] / copies[expert] for expert in experts]
    ranks: list[list[int]] = [[] for _ in slots_of_rank]
    total = [0.0] * len(ranks)
    for i in sorted(range(len(experts)), key=lambda i: -share[i]):
        open_ranks = (r for r, slots in enumerate(ranks) if len(slots) < slots_of_rank[r])
        rank = min(open_ranks, key=total.__getitem__)
        ranks[rank].append(experts[i])
        total[rank] += share[i]
    return [expert for slots in ranks for expert in slots]


def _replicated(load: Sequence[int], num_slots: int) -> list[int]:
    """Each expert once, then the copies, each of the expert that then has the largest load per copy."""
    experts = list(range(len(load)))
    busiest = [(-float(load[expert]), expert, 1) for expert in experts]
    heapify(busiest)
    while len(experts) < num_slots:
        _, expert, copies = busiest[0]
        experts.append(expert)
        heapreplace(busiest, (-load[expert] / (copies + 1), expert, copies + 1))
    return experts
