"""What a comparison saw at each layer, for a terminal: a table with bars, or a heat line for deep models."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moeinspect.analysis.findings import LayerStats, Report
from moeinspect.printable import printable
from moeinspect.report.words import first_divergence, percent

MAX_ROWS = 16
"""Layers that get a row each; deeper models get a heat line and their worst layers."""

_BAR_WIDTH = 20
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEAT = "·▁▂▃▄▅▆▇█"


def layer_view(report: Report) -> RenderableType:
    """Shares of differing cells per layer and per region."""
    layers = report.layers
    parts: list[RenderableType] = [Text("Layers", "bold")]
    if len(layers) <= MAX_ROWS:
        parts.append(_table(layers))
    else:
        parts.append(_heat_line(layers))
        differing = [one for one in layers if _worst(one)]
        worst = sorted(differing, key=_worst, reverse=True)[: MAX_ROWS // 2]
        if worst:
            parts.append(_table(sorted(worst, key=lambda one: one.layer)))
        if len(differing) > len(worst):
            parts.append(Text(f"  ... and {len(differing) - len(worst)} more layers with differences", "dim"))
    regions = _regions(layers)
    if len(regions):
        parts += [Text(), regions]
    where = first_divergence(report)
    if where:
        parts.append(Text(f"  first difference:  {printable(where)}"))
    return Group(*parts)


def _table(layers: Sequence[LayerStats]) -> Table:
    with_order = any(one.order_mismatch is not None for one in layers)
    with_weights = any(one.extra.get("weight_mismatch") is not None for one in layers)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    table.add_column("  layer", justify="right")
    table.add_column("cells", justify="right")
    table.add_column("set mismatch", justify="right")
    table.add_column("", width=_BAR_WIDTH, no_wrap=True)
    table.add_column("overlap", justify="right")
    for wanted, title in ((with_order, "order mismatch"), (with_weights, "weight mismatch")):
        if wanted:
            table.add_column(title, justify="right")
    for one in layers:
        cells = [
            Text(str(one.layer)),
            Text(str(one.compared)),
            Text(percent(one.set_mismatch), _style(one.set_mismatch)),
            _bar(one.set_mismatch),
            Text("-" if one.overlap_mean is None else f"{one.overlap_mean:.3f}"),
        ]
        if with_order:
            cells.append(Text(percent(one.order_mismatch), _style(one.order_mismatch)))
        if with_weights:
            weights = one.extra.get("weight_mismatch")
            cells.append(Text(percent(weights), _style(weights)))
        table.add_row(*cells)
    chance = layers[0].extra.get("chance_overlap")
    if chance is not None:
        table.caption = f"  overlap by chance: {chance:.3f}"
        table.caption_justify = "left"
        table.caption_style = "dim"
    return table


def _bar(share: float | None) -> Text:
    """A bar of `share`, a difference never invisible."""
    if not share:
        return Text("·" * _BAR_WIDTH, "dim")
    eighths = max(1, round(share * _BAR_WIDTH * 8))
    full, rest = divmod(eighths, 8)
    filled = "█" * full + (_EIGHTHS[rest] if rest else "")
    bar = Text(filled, _style(share))
    bar.append("·" * (_BAR_WIDTH - len(filled)), "dim")
    return bar


def _heat_line(layers: Sequence[LayerStats]) -> Text:
    """One character per layer, first to last."""
    line = Text(f"  {layers[0].layer} ", "dim")
    for one in layers:
        worst = _worst(one)
        level = min(len(_HEAT) - 1, 1 + int(worst * (len(_HEAT) - 1))) if worst else 0
        line.append(_HEAT[level], _style(worst))
    line.append(f" {layers[-1].layer}", "dim")
    line.append(f"   share of differing cells, {_HEAT[0]} none to {_HEAT[-1]} all", "dim")
    return line


def _worst(one: LayerStats) -> float:
    return max(one.set_mismatch or 0.0, one.order_mismatch or 0.0, one.extra.get("weight_mismatch") or 0.0)


def _style(share: float | None) -> str:
    if not share:
        return "dim"
    return "yellow" if share < 0.05 else "red"


def _regions(layers: Sequence[LayerStats]) -> Text:
    """The share of differing sets per region over all layers, where a trace tells of regions."""
    line = Text()
    for name in layers[0].extra.get("regions", {}):
        shares = [one.extra["regions"][name] for one in layers]
        compared = sum(share["compared"] for share in shares)
        differing = sum((share["set_mismatch"] or 0.0) * share["compared"] for share in shares)
        if compared:
            line.append("   " if line else "  set mismatch by region:  ", "" if line else "dim")
            line.append(f"{name.replace('_', ' ')} ", "dim")
            line.append(percent(differing / compared), _style(differing / compared))
    return line
