"""Causes of values that are no expert's id: physical ids, a shared expert's column, memory nobody wrote."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.facts import EXPORTS_TOP_K, RunFacts, run_facts
from moeinspect.analysis.diagnose.fillers import filler_reason
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.provenance import rows_of_findings
from moeinspect.analysis.diagnose.words import counted, percent
from moeinspect.analysis.findings import Diagnosis, Finding
from moeinspect.analysis.rules.grouping import layers_text
from moeinspect.trace.schema import Trace, Validity

_NEARLY_ALL = 0.95


@dataclass(frozen=True, slots=True)
class _OddIds:
    """Slots of MoE layers that hold no expert's id: place on axis 1 of the ids, slot and value, one each."""

    place: NDArray[np.int64]
    slot: NDArray[np.int64]
    value: NDArray[np.int64]
    cells: int
    """Cells of all real rows in MoE layers, but those of zeros."""

    def __len__(self) -> int:
        return len(self.value)

    def column(self) -> _OddIds | None:
        """Those of one value in one slot, if they are in nearly every cell."""
        pairs, counts = np.unique(np.stack([self.slot, self.value], axis=1), axis=0, return_counts=True)
        if not len(counts) or counts.max() < _NEARLY_ALL * self.cells:
            return None
        slot, value = pairs[counts.argmax()]
        return self._those((self.slot == slot) & (self.value == value))

    def but(self, column: _OddIds) -> _OddIds:
        """Those of the other slots."""
        return self._those(self.slot != column.slot[0])

    def _those(self, chosen: NDArray[np.bool_]) -> _OddIds:
        return _OddIds(self.place[chosen], self.slot[chosen], self.value[chosen], self.cells)


def diagnose_out_of_range(trace: Trace, findings: tuple[Finding, ...]) -> tuple[Diagnosis, ...]:
    """Reads the causes off which values stand where, and off the run's redundant and shared experts.

    A column of one odd value may stand beside odd values in the other slots: both have a cause then.
    """
    facts, odd = run_facts(trace), _odd_ids(trace)
    if not len(odd) and (absent := _absent_rows(trace, findings)) is not None:
        return (absent,)
    if facts.fused_shared_expert is False or (column := odd.column()) is None:
        return (_beyond_experts(trace, findings, facts, odd),)
    rest = odd.but(column)
    shared = _shared_column(trace, facts, column)
    return (shared, _beyond_experts(trace, findings, facts, rest)) if len(rest) else (shared,)


def _beyond_experts(trace: Trace, findings: tuple[Finding, ...], facts: RunFacts, odd: _OddIds) -> Diagnosis:
    num_experts = trace.model.num_experts
    largest = int(odd.value.max(initial=0))
    because = [f"ids beyond the {num_experts:,} experts of the model, up to {largest:,}"]
    copies = facts.redundant_experts
    if copies is None and num_experts <= largest < 2 * num_experts:
        because.append("all of them under twice the number of experts, as ids of redundant experts are")
        return diagnosis("physical-ids", 0.7, because, trace)
    if copies and largest < num_experts + copies:
        layers = trace.axis_layers()[np.unique(odd.place)]
        named = rows_of_findings(trace, findings).mean()
        because += [
            f"with {counted(copies, 'redundant expert')} the physical experts are 0 to "
            f"{num_experts + copies - 1:,}, and no id is beyond them",
            f"they stand in {layers_text(tuple(layers.tolist()))} and in {percent(float(named))} of the rows",
            "ids were recorded after the map from logical to physical experts",
        ]
        return diagnosis("physical-ids", 0.95, because, trace)
    causes = [] if facts.backend in EXPORTS_TOP_K else ["kernel-uncaptured"]
    if copies is None:
        causes.append("physical-ids")
    elif copies:
        because.append(f"{counted(copies, 'redundant expert')} explain no such id")
    return diagnosis("|".join(causes) or "unknown", 0.4 if causes else 0.3, because, trace)


def _absent_rows(trace: Trace, findings: tuple[Finding, ...]) -> Diagnosis | None:
    """`filler-as-real` where whole rows hold "no id" and claim to be real."""
    if not filler_reason(trace, rows_of_findings(trace, findings)):
        return None
    because = [
        f'{counted(len(findings), "run")} of rows with "no id" in all places that claim to be real',
        "engines send no such rows: trainers mark by -1 what was not captured",
    ]
    return diagnosis("filler-as-real", 0.9, because, trace)


def shared_column_of_sentinels(trace: Trace) -> Diagnosis | None:
    """`shared-expert-column` where the column's id is stored as "no id": one slot lacks it everywhere."""
    facts, odd = run_facts(trace), _odd_ids(trace, sentinels=True)
    if facts.fused_shared_expert is False or (column := odd.column()) is None:
        return None
    return _shared_column(trace, facts, column)


def _shared_column(trace: Trace, facts: RunFacts, odd: _OddIds) -> Diagnosis:
    slot, value = int(odd.slot[0]), int(odd.value[0])
    is_last = slot == trace.rows.expert_ids.shape[2] - 1
    because = [
        f"slot {slot}{', the last one,' if is_last else ''} holds {value} in every row and MoE layer: a "
        "column that no router chose",
    ]
    copies = facts.redundant_experts or 0
    if copies and value == trace.model.num_experts + copies:
        because.append(
            f"{value} comes right after the {value} physical experts, where a fused shared expert stands"
        )
    if value == trace.model.num_experts:
        because.append(
            f"{value} comes right after the {value} experts, as the id of a shared expert that is fused with "
            "them does"
        )
    if facts.fused_shared_expert:
        because.append("the shared expert was fused with the routed ones: its column was not stripped")
    return diagnosis("shared-expert-column", 0.95 if facts.fused_shared_expert else 0.8, because, trace)


def _odd_ids(trace: Trace, *, sentinels: bool = False) -> _OddIds:
    """Ids at or above the number of experts in real rows; "no id" counts, or counts alone, as told."""
    rows, model = trace.rows, trace.model
    is_moe = np.isin(trace.axis_layers(), model.moe_layers)
    claimed = np.isin(rows.validity, (Validity.REAL, Validity.INVALID))
    absent = int(np.iinfo(rows.expert_ids.dtype).max)
    invalid = rows.invalid_cells
    known = np.zeros(rows.expert_ids.shape, dtype=bool)
    layer_place = {int(layer): place for place, layer in enumerate(trace.axis_layers())}
    place = np.asarray([layer_place.get(layer, -1) for layer in invalid.layer.tolist()], dtype=np.int64)
    wanted = (place >= 0) & ((invalid.value < 0) if sentinels else (invalid.value >= model.num_experts))
    known[invalid.row[place >= 0], place[place >= 0], invalid.slot[place >= 0]] = True
    odd = (rows.expert_ids == absent) if sentinels else (rows.expert_ids != absent)
    odd &= (rows.expert_ids >= model.num_experts) & is_moe[None, :, None] & claimed[:, None, None] & ~known
    at = np.nonzero(odd)
    return _OddIds(
        place=np.concatenate([at[1], place[wanted]]).astype(np.int64),
        slot=np.concatenate([at[2], invalid.slot[wanted]]).astype(np.int64),
        value=np.concatenate([rows.expert_ids[at].astype(np.int64), invalid.value[wanted]]),
        cells=int(rows.expert_ids[claimed][:, is_moe].any(axis=2).sum()),
    )
