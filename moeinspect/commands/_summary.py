"""A finished run as text or as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from moeinspect.commands._choices import Format
from moeinspect.commands._next import diff_command
from moeinspect.commands._run import RunSummary
from moeinspect.printable import printable
from moeinspect.report.words import counted

if TYPE_CHECKING:
    from moeinspect.runtime.faults import Fault


def render_summary(summary: RunSummary, format: Format) -> str:
    """What was recorded, as one line or as one JSON document."""
    if format is Format.JSON:
        return json.dumps(_summary_document(summary), allow_nan=False, indent=2)
    line = printable(f"Wrote {summary.output}: {summary_line(summary)}")
    return f"::notice title=moeinspect capture::{line}" if format is Format.GITHUB else line


def summary_line(summary: RunSummary) -> str:
    """The run in numbers."""
    model = summary.model
    parts = [
        f"{counted(summary.requests, 'request')}, {counted(summary.rows, 'row')}, "
        f"{counted(model.num_captured_layers, 'MoE layer')}, top-{model.top_k} of {model.num_experts} experts"
    ]
    if summary.drafted:
        share = summary.accepted / summary.drafted
        parts.append(f"{summary.accepted:,} of {summary.drafted:,} drafted tokens accepted ({share:.0%})")
    if summary.cached_tokens:
        parts.append(f"{counted(summary.cached_tokens, 'prompt token')} from the prefix cache")
    if summary.retractions:
        parts.append(counted(summary.retractions, "retraction"))
    if summary.aborted:
        parts.append(f"{counted(summary.aborted, 'request')} aborted")
    if summary.faults:
        parts.append(f"with the fault {', '.join(summary.faults)}")
    return "; ".join(parts)


def list_faults(format: Format) -> str:
    """The faults that --fault knows and what each needs, as text or as one JSON document."""
    from moeinspect.runtime.faults import FAULTS

    if format is Format.JSON:
        document = {"schema": "moeinspect-faults/1", "faults": [asdict(fault) for fault in FAULTS.values()]}
        return json.dumps(document, allow_nan=False, indent=2)
    width = max(map(len, FAULTS)) + 2
    lines = []
    for name, fault in FAULTS.items():
        lines.append(f"{name:<{width}}{fault.summary} ({fault.upstream})")
        if needs := fault_needs(fault):
            lines.append(f"{'':<{width}}needs {needs}")
    return "\n".join(lines)


def fault_needs(fault: Fault) -> str:
    """The options without which a fault does nothing, and the traffic that it brings along."""
    from moeinspect.runtime.faults import ANY_DRAFT, OWN_DRAFT, OWN_UPDATE
    from moeinspect.runtime.option_words import option_words

    words = {
        OWN_DRAFT: "--draft MODEL",
        ANY_DRAFT: "--draft MODEL|ngram",
        OWN_UPDATE: "--weight-update STEP:MODEL",
    }
    options = [
        words[need] if isinstance(need, str) and need in words else option_words(field, need)
        for field, need in fault.needs.items()
    ]
    if fault.traffic:
        options.append(option_words("traffic", fault.traffic))
    return " ".join(options)


def _summary_document(summary: RunSummary) -> dict[str, object]:
    return {
        "schema": "moeinspect-capture/1",
        "command": "capture",
        "output": str(summary.output),
        "requests": summary.requests,
        "rows": summary.rows,
        "layers": summary.model.num_captured_layers,
        "top_k": summary.model.top_k,
        "num_experts": summary.model.num_experts,
        "num_drafted": summary.drafted,
        "num_accepted": summary.accepted,
        "cached_tokens": summary.cached_tokens,
        "num_retractions": summary.retractions,
        "num_aborted": summary.aborted,
        "injected_faults": list(summary.faults),
        "next": diff_command(summary.output),
    }
