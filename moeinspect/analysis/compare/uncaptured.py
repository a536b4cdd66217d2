"""Notes on what was not compared because a layer is exempt from capture."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from moeinspect.analysis.align import Alignment
from moeinspect.analysis.compare.cellwise import CellResults
from moeinspect.analysis.findings import Finding
from moeinspect.analysis.rules.grouping import layers_text

_SIDES = {(True, False): ("A", ["a"]), (False, True): ("B", ["b"]), (True, True): ("A and B", ["a", "b"])}


def uncaptured_notes(alignment: Alignment, cells: CellResults) -> Iterator[Finding]:
    """`not-compared`: exempt layers that a side did not capture at all, then single cells of others."""
    for (in_a, in_b), (named, sides) in _SIDES.items():
        layers = tuple(
            layer
            for layer in sorted({*alignment.uncaptured_a, *alignment.uncaptured_b})
            if (layer in alignment.uncaptured_a) == in_a and (layer in alignment.uncaptured_b) == in_b
        )
        if layers:
            text = f"{layers_text(layers)}: exempt from capture and not captured in {named}, not compared"
            yield _note(text, layers, len(layers) * len(alignment), {"not_captured_in": sides})
    missing = (~cells.compared).sum(axis=0)
    layers = tuple(int(layer) for layer in alignment.layers[np.flatnonzero(missing)])
    if layers:
        text = (
            f"{layers_text(layers)}: exempt from capture, and not captured in some rows, not compared there"
        )
        yield _note(text, layers, int(missing.sum()), {})


def num_uncaptured(alignment: Alignment, cells: CellResults) -> int:
    """Cells of common MoE layers that were not compared."""
    whole = len({*alignment.uncaptured_a, *alignment.uncaptured_b}) * len(alignment)
    return whole + int(cells.compared.size - cells.compared.sum())


def _note(text: str, layers: tuple[int, ...], count: int, evidence: dict[str, object]) -> Finding:
    evidence = {"reason": "exempt-layers"} | evidence
    return Finding("not-compared", "note", text, count, layers=layers, evidence=evidence)
