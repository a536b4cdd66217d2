"""Pages of the guide: Markdown as it is for pipes and files, laid out for a terminal, or as JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from moeinspect.guide import GROUPS, TOPICS, Page
from moeinspect.guide.lookup import MAX_FITTING

SCHEMA = "moeinspect-guide/1"


def explain_command(cause: str) -> str:
    """What shows the pages of a cause, ready to paste; of a joined cause all its pages."""
    return shlex.join(["moeinspect", "explain", cause])


def render_pages(pages: Sequence[Page], *, color: bool, width: int | None) -> str:
    """The pages one after another; `width` and `color` as in `report.render`."""
    if width is None:
        return "\n".join(page.text for page in pages)
    from moeinspect.report.markdown import render_markdown  # rich starts slowly: only for a terminal

    return render_markdown([page.text for page in pages], color=color, width=width)


def render_index(pages: Sequence[Page], *, color: bool, width: int | None) -> str:
    """Name and title of each page: one a line for pipes, else under the headings of their groups."""
    if width is None:
        return "".join(f"{page.kind} {page.name}: {page.title}\n" for page in pages)
    from moeinspect.report.markdown import render_groups

    return render_groups(_groups(pages), color=color, width=width)


def _groups(pages: Sequence[Page]) -> dict[str, list[tuple[str, str]]]:
    """Names and titles under headings; faults, if there are many, by what they have to do with."""
    groups = {
        heading: [(page.name, page.title) for page in pages if page.kind == kind]
        for kind, (_, heading) in GROUPS.items()
    }
    _, heading = GROUPS["fault"]
    titles = dict(groups[heading])
    if len(titles) > MAX_FITTING:
        by_topic = {
            f"{heading.partition(':')[0]}: {topic}": [
                (name, titles[name]) for name in names if name in titles
            ]
            for topic, names in TOPICS.items()
        }
        groups = by_topic | {other: entries for other, entries in groups.items() if other != heading}
    return {heading: entries for heading, entries in groups.items() if entries}


def pages_json(pages: Sequence[Page], references: Mapping[str, str], *, with_text: bool) -> str:
    """One document (`moeinspect-guide/1`). `references` say by name where a cause was seen."""
    document = {"schema": SCHEMA, "pages": [_page(page, references, with_text) for page in pages]}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _page(page: Page, references: Mapping[str, str], with_text: bool) -> dict[str, Any]:
    is_cause = page.kind not in ("rule", "comparison")
    return {
        "name": page.name,
        "title": page.title,
        "kind": page.kind,
        "reference": references.get(page.name, "") if is_cause else "",
    } | ({"text": page.text} if with_text else {})
