"""Upstream reports that pages name, and what of a question names one."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PROJECTS = "strands-sglang|sglang|vllm-ascend|vllm|flashinfer|slime|miles|nemo-rl|prime-rl|skyrl|verl|router"

_TOKEN = re.compile(
    rf"(?P<project>\b(?:{_PROJECTS})\b)|(?P<number>(?<![\d.,-])\d{{3,6}}\b(?![.,-]?\d))", re.IGNORECASE
)

_BEFORE_NUMBER = re.compile(rf"(?:\b(?:{_PROJECTS})(?:'s)?|\bPRs?|\bissues?|#)[\s:]*$", re.IGNORECASE)

_BETWEEN_NUMBERS = re.compile(r"[\s,]*(?:and)?\s*")

EXCERPT = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
"""The excerpts of reports on a page."""

_FILLING = re.compile(
    r"https?://|github\.com|\b(?:prs?|pulls?|pull request|issues?)\b|[#:/\s]", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Reference:
    """An issue or pull request. `project` is the repository's name in small letters; empty: any."""

    project: str
    number: int

    def fits(self, other: Reference) -> bool:
        """Whether both may be the same report."""
        return self.number == other.number and (
            not self.project or not other.project or self.project == other.project
        )


def references_in(text: str) -> frozenset[Reference]:
    """The reports that a text names: `sglang#23885`, `SGLang PR 23885`, `SGLang 26975 and 39027`.

    Excerpts of reports do not count.
    """
    found: set[Reference] = set()
    project, prose, end = "", EXCERPT.sub("", text), 0
    for token in _TOKEN.finditer(prose):
        if token["project"]:
            project = token["project"].lower()
        elif _BEFORE_NUMBER.search(prose, 0, token.start()) or (
            found and _BETWEEN_NUMBERS.fullmatch(prose, end, token.start())
        ):
            found.add(Reference(project, int(token["number"])))
            end = token.end()
    return frozenset(found)


def reference_meant(question: str) -> Reference | None:
    """The report that a question is, and nothing else: `sglang#23885`, `#23885`, `23885`, an address."""
    number = re.search(r"(?:^|[^\w.,-])(\d{3,6})/?$|^(\d{3,6})$", question.strip())
    if number is None:
        return None
    rest = [part for part in _FILLING.split(question.strip()[: number.start()]) if part]
    if len(rest) > 2:
        return None
    return Reference(rest[-1].lower() if rest else "", int(number[1] or number[2]))
