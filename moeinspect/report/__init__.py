"""How findings look: one module per format, all of them fed by one `Report`."""

from __future__ import annotations

from typing import Literal

from moeinspect.analysis.findings import Report

Format = Literal["text", "json", "github"]

__all__ = ["Format", "render"]


def render(report: Report, format: Format, *, color: bool, width: int | None) -> str:
    """The report as text that ends with a newline.

    `width` is the number of columns of the terminal that shows it, None if nothing does: then text is
    plain lines, one record a line, never cut. `color` adds escape codes to text.
    """
    if format == "json":
        from moeinspect.report.json import render_json

        return render_json(report)
    if format == "github":
        from moeinspect.report.github import render_github

        return render_github(report)
    if width is None:
        from moeinspect.report.plain import render_plain

        return render_plain(report, color=color)
    from moeinspect.report.text import render_text  # rich starts slowly: only for a terminal

    return render_text(report, color=color, width=width)
