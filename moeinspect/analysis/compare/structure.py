"""Findings about the order of things: shifted rows, shifted layers, renamed experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeinspect.analysis.align import Alignment
from moeinspect.analysis.compare.cellwise import CellResults
from moeinspect.analysis.compare.permutation import LayerPermutation
from moeinspect.analysis.compare.renaming import LayerRenaming, NameChange
from moeinspect.analysis.compare.shifts import LayerShift, RowShift
from moeinspect.analysis.compare.wording import place_text, region_of
from moeinspect.analysis.findings import Finding
from moeinspect.analysis.rules.grouping import layers_text
from moeinspect.analysis.workers import worker_name

_SHOWN_IDS = 8
_SHOWN_CHANGES = 16


def row_shift_findings(
    alignment: Alignment, cells: CellResults, shifts: Sequence[RowShift]
) -> Iterator[Finding]:
    """One `shifted-rows` per run; `count` is the mismatching cells that the shift accounts for."""
    layers = tuple(int(layer) for layer in alignment.layers)
    for shift in shifts:
        request = alignment.pairing.pairs[shift.pair][0]
        prompt_len = int(alignment.a.requests.prompt_len[request])
        start_pos = int(alignment.a.requests.start_pos[request])
        first, last = int(alignment.position[shift.start]), int(alignment.position[shift.end - 1]) + 1
        rows, region = (first - start_pos, last - start_pos), region_of(first, last, prompt_len)
        yield Finding(
            rule="shifted-rows",
            severity="error",
            message=(
                f"{place_text(rows, region, layers, len(layers))}: A holds what B has "
                f"{_distance(shift.lag, 'row')} ({_percent(shift.agreement)} of cells agree, "
                f"{_percent(shift.unshifted)} unshifted)"
            ),
            count=int(cells.set_mismatch[shift.start : shift.end].sum()),
            request=alignment.request_id(shift.pair),
            rows=rows,
            layers=layers,
            region=region,
            evidence={
                "lag": shift.lag,
                "agreement": shift.agreement,
                "agreement_unshifted": shift.unshifted,
                "positions": [first, last],
                "seam": first,
                "seam_at_prompt_end": first in (prompt_len, prompt_len - shift.lag),
            },
        )


def layer_shift_findings(
    alignment: Alignment, cells: CellResults, shifts: Sequence[LayerShift]
) -> Iterator[Finding]:
    """One `shifted-layers` per shift."""
    for shift in shifts:
        layers = tuple(int(alignment.layers[place]) for place in shift.places)
        yield Finding(
            rule="shifted-layers",
            severity="error",
            message=(
                f"{layers_text(layers)}: A holds what B has {_distance(shift.shift, 'MoE layer')} "
                f"({_percent(shift.agreement)} of cells agree, {_percent(shift.unshifted)} unshifted)"
            ),
            count=int(cells.set_mismatch[:, list(shift.places)].sum()),
            layers=layers,
            evidence={
                "shift": shift.shift,
                "agreement": shift.agreement,
                "agreement_unshifted": shift.unshifted,
                "rows_sampled": shift.rows,
                "copies": shift.copies,
            },
        )


def permutation_findings(
    alignment: Alignment, cells: CellResults, permutations: Sequence[LayerPermutation]
) -> Iterator[Finding]:
    """One `permuted-ids` for all layers that are renamed."""
    if not permutations:
        return
    layers = tuple(int(alignment.layers[p.place]) for p in permutations)
    yield Finding(
        rule="permuted-ids",
        severity="error",
        message=(
            f"{layers_text(layers)}: A names the experts differently: one renaming per layer makes "
            f"{_percent(min(p.agreement for p in permutations))} of cells or more equal to B's"
        ),
        count=int(cells.set_mismatch[:, [p.place for p in permutations]].sum()),
        layers=layers,
        evidence={
            "layers": [
                {
                    "layer": int(alignment.layers[p.place]),
                    "moved": len(p.source),
                    "agreement": p.agreement,
                    "agreement_unmapped": p.unmapped,
                    "mapping": [list(pair) for pair in zip(p.source, p.target, strict=True)][:_SHOWN_IDS],
                }
                for p in permutations
            ]
        },
    )


def renaming_findings(
    alignment: Alignment,
    cells: CellResults,
    renamings: Sequence[LayerRenaming],
    changes: Sequence[NameChange],
) -> Iterator[Finding]:
    """One `permuted-ids` for all layers in which names of experts change during the run."""
    if not renamings:
        return
    layers = tuple(int(alignment.layers[r.place]) for r in renamings)
    times = "once" if len(changes) == 1 else f"{len(changes)} times"
    yield Finding(
        rule="permuted-ids",
        severity="error",
        message=(
            f"{layers_text(layers)}: A names the experts differently, up to "
            f"{max(r.names for r in renamings)} names for {max(r.experts for r in renamings)} experts: "
            f"that explains {_percent(min(r.explained for r in renamings))} of the mismatches; the names "
            f"{f'change {times}' if changes else 'stay the same'}"
        ),
        count=int(cells.set_mismatch[:, [r.place for r in renamings]].sum()),
        layers=layers,
        evidence={
            "layers": [
                {
                    "layer": int(alignment.layers[r.place]),
                    "names": r.names,
                    "experts": r.experts,
                    "kept": r.kept,
                    "explained": r.explained,
                }
                for r in renamings
            ],
            "num_changes": len(changes),
            "changes": [
                {"worker": worker_name(alignment.a, change.worker), "steps": [change.after, change.before]}
                for change in changes[:_SHOWN_CHANGES]
            ],
        },
    )


def _distance(steps: int, noun: str) -> str:
    plural = "" if abs(steps) == 1 else "s"
    where = ("later" if steps > 0 else "earlier") if noun == "row" else ("higher" if steps > 0 else "lower")
    return f"{abs(steps)} {noun}{plural} {where}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
