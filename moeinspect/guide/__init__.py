"""The pages that `moeinspect explain` prints: one per cause, rule and verdict.

They are Markdown files in the folders beside this one, a folder per kind; the first line of a page is
`# NAME: what it is in a few words`. Links between pages are for those who read them in the repository; here
they are reduced to their text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

Kind = Literal["fault", "transport", "rule", "comparison", "verdict"]

GROUPS: dict[Kind, tuple[str, str]] = {
    "fault": ("faults", "Faults: causes that the local runtime can commit (capture --fault NAME)"),
    "transport": ("transport", "Transport and trainer side: causes behind the engine"),
    "rule": ("rules", "Rules on one trace"),
    "comparison": ("comparison", "Rules on two traces"),
    "verdict": ("verdicts", "Verdicts"),
}
"""Folder and heading of each kind, in the order in which they are listed."""

TOPICS: dict[str, tuple[str, ...]] = {
    "Disaggregation": ("skip-finalize-prefill", "no-merge", "merge-misaligned"),
    "Overlap, caches and updates": ("buffer-reuse", "read-early", "stale-slot", "retract-reroute"),
    "Requests": ("batch-index-swap", "surplus-after-stop", "prefill-only-short"),
    "Drafts": (
        "draft-capture",
        "draft-optout-late",
        "bypass-drops-flag",
        "ungated-backend",
        "draft-forward-end",
        "draft-recreates-capturer",
        "tree-rows",
        "verify-dropped",
    ),
    "Graphs and backends": ("graph-static-rows", "padded-rows", "kernel-uncaptured"),
    "Ranks and placement": ("physical-ids", "tp-shard", "pp-stage", "dp-slice"),
    "The model": ("init-order", "shared-expert-column", "hash-layer-uncaptured", "nan-logits"),
}
"""Faults by what they have to do with, in the order in which the guide lists them."""

_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Page:
    """One page. `title` is its subject in a few words, `text` the whole page as Markdown."""

    name: str
    title: str
    kind: Kind
    text: str


@cache
def all_pages() -> tuple[Page, ...]:
    """Every page, by kind and then by name."""
    return tuple(page for kind in GROUPS for page in _pages_of(kind))


def _pages_of(kind: Kind) -> Iterator[Page]:
    folder, _ = GROUPS[kind]
    for file in sorted((files(__name__) / folder).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".md"):
            text = file.read_text(encoding="utf-8")
            name, _, title = text.partition("\n")[0].removeprefix("# ").partition(": ")
            yield Page(name, title, kind, _LINK.sub(_without_link, text))


def _without_link(link: re.Match[str]) -> str:
    text, target = link.groups()
    if target.startswith("http"):
        return f"{text} ({target})"
    return f"`{text}`" if target.endswith(f"/{text}.md") or target == f"{text}.md" else text
