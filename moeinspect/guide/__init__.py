"""The pages that `moeinspect explain` prints: one per cause, rule and verdict.

They are Markdown files in the folders beside this one, a folder per kind; the first line of a page is
`# NAME: what it is in a few words`. Links between pages are for those who read them in the repository; here
they are reduced to their text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Literal

from moeinspect.errors import UsageError

Kind = Literal["fault", "transport", "rule", "comparison", "verdict"]

GROUPS: dict[Kind, tuple[str, str]] = {
    "fault": ("faults", "Faults: causes that the local runtime can commit (capture --fault NAME)"),
    "transport": ("transport", "Transport and trainer side: causes behind the engine"),
    "rule": ("rules", "Rules on one trace"),
    "comparison": ("comparison", "Rules on two traces"),
    "verdict": ("verdicts", "Verdicts"),
}
"""Folder and heading of each kind, in the order in which they are listed."""

MAX_NEAREST = 4
"""Names that are offered in place of an unknown one."""

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


def pages_named(name: str) -> tuple[Page, ...]:
    """The pages of a name, causes first; of a joined cause (`a|b`) those of all its names.

    Raises:
        UsageError: there is no page of that name; the message has the nearest names.
    """
    found: list[Page] = []
    for part in name.split("|"):
        wanted = part.strip().lower().replace("_", "-")
        own = [page for page in all_pages() if page.name == wanted]
        if not own:
            raise _unknown(part.strip())
        found += own
    return tuple(dict.fromkeys(found))


def _unknown(name: str) -> UsageError:
    names = list(dict.fromkeys(page.name for page in all_pages()))
    near = _nearest(name.lower().replace("_", "-"), names)
    nearest = f"the nearest: {', '.join(near)}" if near else "none is near"
    return UsageError(f"no page named {name!r}", f"{nearest}; `moeinspect explain --list` lists all")


def _nearest(wanted: str, names: list[str]) -> list[str]:
    """Names that hold `wanted`, else names like it, else names with a word like one of its words."""
    holding = [name for name in names if len(wanted) > 2 and wanted in name]
    alike = get_close_matches(wanted, names, MAX_NEAREST)
    words = sorted({word for name in names for word in name.split("-")})
    meant = {near for word in wanted.split("-") for near in get_close_matches(word, words, 1, 0.75)}
    sharing = sorted(names, key=lambda name: -len(meant.intersection(name.split("-"))))
    sharing = [name for name in sharing if meant.intersection(name.split("-"))]
    return list(dict.fromkeys(holding + alike + sharing))[:MAX_NEAREST]


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
