"""Which pages a question means: a name, an upstream report, or words of a symptom or an error message."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from math import log

from moeinspect.errors import UsageError
from moeinspect.guide import Page, all_pages
from moeinspect.guide.references import EXCERPT, Reference, reference_meant, references_in

MAX_NEAREST = 4
"""Names that are offered in place of an unknown one."""

MAX_FITTING = 12
"""Pages that are listed for words."""

_ENOUGH = 0.6
"""Share of a question's words, by how rare they are, that a page must hold."""

_BEGINNING = re.compile(r"\*\*(Symptom\.|Fires|Says|It is said when)\*\*(.*?)(?=\n\n\*\*|\Z)", re.DOTALL)

_QUOTED = re.compile(r"`([^`]+)`")

_SUFFIX = re.compile(r"(?:ing|ed|es|e|s|ly)$")

_LITTLE = """
a an and are as at be but by do does for from get has have how i in is it its my no not of on or says so that
the them their there they this to was were what when where which why with
"""
_STOPWORDS = frozenset(_LITTLE.split())


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question came to. `by_name`: the pages are those of a name, or of several joined by `|`."""

    pages: tuple[Page, ...]
    by_name: bool


def look_up(question: str, references: Mapping[str, str]) -> Answer:
    """The pages of a name, causes first; those that name an upstream report; or those that fit words.

    `references` say by name where a cause was seen. Capitals, underscores and blanks in names are forgiven,
    and a joined cause (`a|b`) has the pages of all its names.

    Raises:
        UsageError: no page fits; the message has what is nearest.
    """
    if own := _named(question):
        return Answer(own, True)
    if reference := reference_meant(question):
        if found := _about(reference, references):
            return Answer(found, False)
        raise _unknown_reference(question, reference, references)
    is_words = "|" not in question and not re.fullmatch(r"\s*\w+([-_]\w+)+\s*", question)
    if is_words and (found := _fitting(question)):
        return Answer(found, False)
    raise _unknown(question)


def _named(question: str) -> tuple[Page, ...]:
    """The pages of all names of a question; none if one of them has none."""
    found: list[Page] = []
    for part in question.split("|"):
        own = [page for page in all_pages() if page.name == _as_name(part)]
        if not own:
            return ()
        found += own
    return tuple(dict.fromkeys(found))


def _as_name(text: str) -> str:
    return re.sub(r"[_\s]+", "-", text.strip().lower())


def _about(wanted: Reference, references: Mapping[str, str]) -> tuple[Page, ...]:
    """The pages that name a report, those of causes that were seen in it first."""
    seen_in = {name: references_in(text) for name, text in references.items()}
    first, others = [], []
    for page in all_pages():
        if page.kind in ("fault", "transport") and any(map(wanted.fits, seen_in.get(page.name, ()))):
            first.append(page)
        elif any(map(wanted.fits, references_in(page.text))):
            others.append(page)
    return tuple(first + others)


@dataclass(frozen=True, slots=True)
class _Words:
    """Words of a page, as they are compared: of its name and title; of its symptom, in their order."""

    title: tuple[str, ...]
    symptom: tuple[str, ...]
    messages: tuple[tuple[str, ...], ...]
    """Error messages that the page quotes."""

    @property
    def everywhere(self) -> frozenset[str]:
        """All of them."""
        return frozenset(self.title + self.symptom)


def _fitting(question: str) -> tuple[Page, ...]:
    """The pages whose title and symptom hold the words of a question, those that hold them best first."""
    pages = _page_words()
    known = {word for words in pages.values() for word in words.everywhere}
    wanted = _words(question)
    if quoting := _quoting(wanted, pages):
        return quoting
    told = [word for word in wanted if word in known]
    if len(told) > 1:  # the rest of a message: ranks, counts, names of exceptions
        wanted = told
    if not told:
        return ()
    weights = {word: _rarity(word, pages) for word in wanted}
    scores = {page: _score(wanted, weights, words) for page, words in pages.items()}
    whole = sum(weights.values())
    fitting = [page for page, (share, _) in scores.items() if share >= _ENOUGH * whole]
    return tuple(sorted(fitting, key=lambda page: scores[page][1], reverse=True)[:MAX_FITTING])


def _quoting(wanted: Sequence[str], pages: Mapping[Page, _Words]) -> tuple[Page, ...]:
    """The pages that quote a message which stands in a question."""
    return tuple(
        page for page, words in pages.items() if any(_holds(wanted, message) for message in words.messages)
    )


def _holds(words: Sequence[str], part: Sequence[str]) -> bool:
    """Whether `part` stands in `words` as it is."""
    return any(tuple(words[i : i + len(part)]) == part for i in range(len(words) - len(part) + 1))


def _score(wanted: Sequence[str], weights: Mapping[str, float], words: _Words) -> tuple[float, float]:
    """What of a question a page holds, by how rare the words are; and how well, for the order."""
    everywhere = words.everywhere
    held = sum(weight for word, weight in weights.items() if word in everywhere)
    in_title = sum(weight for word, weight in weights.items() if word in words.title)
    neighbours = {*pairwise(words.title), *pairwise(words.symptom)}
    together = sum(weights[second] for first, second in pairwise(wanted) if (first, second) in neighbours)
    return held, held + in_title + together


def _rarity(word: str, pages: Mapping[Page, _Words]) -> float:
    holding = sum(word in words.title or word in words.symptom for words in pages.values())
    return log(1 + len(pages) / (1 + holding))


@cache
def _page_words() -> dict[Page, _Words]:
    pages = {}
    for page in all_pages():
        symptom = " ".join(part[2] for part in _BEGINNING.finditer(page.text))
        symptom = EXCERPT.sub("", symptom)
        quoted = (tuple(_words(message)) for message in _QUOTED.findall(symptom))
        messages = tuple(words for words in quoted if len(words) > 2)
        title = tuple(_words(f"{page.name} {page.title}"))
        pages[page] = _Words(title, tuple(_words(symptom)), messages)
    return pages


def _words(text: str) -> list[str]:
    """The words that tell something, without their endings: `routing`, `routed` and `routes` are one."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return [_stem(word) for word in words if len(word) > 1 and word not in _STOPWORDS]


def _stem(word: str) -> str:
    stem = _SUFFIX.sub("", word)
    return stem if len(stem) > 2 else word


def _unknown_reference(question: str, reference: Reference, references: Mapping[str, str]) -> UsageError:
    texts = [*references.values(), *(page.text for page in all_pages())]
    known = {one for text in texts for one in references_in(text)}
    same = [one for one in known if one.number == reference.number]
    numbers = get_close_matches(str(reference.number), [str(one.number) for one in known], MAX_NEAREST, 0.75)
    near = same or [one for one in known if str(one.number) in numbers]
    words = sorted(f"{one.project}#{one.number}" for one in near if one.project)[:MAX_NEAREST]
    nearest = f"did you mean {_listed(words)}?" if words else "try words of the symptom;"
    return UsageError(f"no page names {question.strip()}", f"{nearest} `moeinspect explain --list` lists all")


def _unknown(question: str) -> UsageError:
    missing = next(part.strip() for part in question.split("|") if not _named(part))
    names = list(dict.fromkeys(page.name for page in all_pages()))
    near = _nearest(_as_name(missing), names)
    nearest = f"did you mean {_listed(near)}?" if near else "nothing is near;"
    return UsageError(f"no page named {missing!r}", f"{nearest} `moeinspect explain --list` lists all")


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _nearest(wanted: str, names: list[str]) -> list[str]:
    """Names that hold `wanted`, else names like it, else names with a word like one of its words."""
    holding = [name for name in names if len(wanted) > 2 and wanted in name]
    alike = get_close_matches(wanted, names, MAX_NEAREST)
    words = sorted({word for name in names for word in name.split("-")})
    asked = re.findall(r"\w+", wanted)
    meant = {near for word in asked for near in get_close_matches(word, words, 1, 0.75)}
    sharing = sorted(names, key=lambda name: -len(meant.intersection(name.split("-"))))
    sharing = [name for name in sharing if meant.intersection(name.split("-"))]
    return list(dict.fromkeys(holding + alike + sharing))[:MAX_NEAREST]
