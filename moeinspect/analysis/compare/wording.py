"""How the place of a finding is said."""

from __future__ import annotations

from moeinspect.analysis.findings import Region
from moeinspect.analysis.rules.grouping import layers_text, rows_text


def place_text(rows: tuple[int, int], region: Region, layers: tuple[int, ...], num_layers: int) -> str:
    """`rows 3-9 (output), layers 0-2`; `num_layers` is how many layers there are to name."""
    whole = len(layers) == num_layers > 1
    where = f"all {num_layers} MoE layers" if whole else layers_text(layers)
    return f"{rows_text(rows)} ({region}), {where}"


def region_of(first: int, last: int, prompt_len: int) -> Region:
    """The region of positions [first, last)."""
    if last <= prompt_len:
        return "prompt"
    return "output" if first >= prompt_len else "both"
