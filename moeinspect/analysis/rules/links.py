"""Links: a row and a row of another request that holds the same ids under another token prefix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.rules.coincidence import Coincidences
from moeinspect.analysis.rules.slot_owner import former_owner_rows
from moeinspect.analysis.rules.view import TraceView
from moeinspect.trace.schema import Origin

MOVED = (Origin.PREFIX_CACHE, Origin.TRANSFERRED)


@dataclass(frozen=True, slots=True)
class Links:
    """Rows [n] of the file, a row [n] of another request for each, and what chance explains it by."""

    row: NDArray[np.int64]
    source: NDArray[np.int64]
    chance_log10: NDArray[np.float64]

    @staticmethod
    def of(row: NDArray[np.int64], source: NDArray[np.int64]) -> Links:
        """Links that nobody has judged yet."""
        return Links(row, source, np.zeros(len(row)))

    def __len__(self) -> int:
        return len(self.row)

    def __add__(self, other: Links) -> Links:
        return Links(
            np.concatenate([self.row, other.row]),
            np.concatenate([self.source, other.source]),
            np.concatenate([self.chance_log10, other.chance_log10]),
        )

    def pick(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Links:
        """The chosen links, in the order chosen."""
        return Links(self.row[chosen], self.source[chosen], self.chance_log10[chosen])


def owner_links(view: TraceView, rows: NDArray[np.bool_]) -> Links:
    """Rows that equal the row of their slot's former owner."""
    links = Links.of(*former_owner_rows(view))
    return links.pick(rows[links.row] & rows[links.source] & are_copies(view, links))


def cross_links(view: TraceView, coincidences: Coincidences) -> Links:
    """Both directions of each pair of equal rows that spans two requests."""
    pairs = coincidences.pairs
    links = Links.of(np.concatenate([pairs.a, pairs.b]), np.concatenate([pairs.b, pairs.a]))
    return links.pick(are_copies(view, links))


def are_copies(view: TraceView, links: Links) -> NDArray[np.bool_]:
    """Whether both rows hold the same ids, in different requests, after different tokens."""
    places = view.places
    equal = view.content[links.row] == view.content[links.source]
    other = places.request[links.row] != places.request[links.source]
    copies: NDArray[np.bool_] = equal & other & (places.prefix[links.row] != places.prefix[links.source])
    return copies


def points_at_the_copy(
    view: TraceView, coincidences: Coincidences, links: Links, owners: Links
) -> NDArray[np.bool_]:
    """False for links whose row is the original and whose source the copy, as far as the trace tells.

    The former owner of a slot is the original. Else a row that was moved (cached prefix, transferred, never
    computed) is the copy of one that was not, and a row whose token prefix stands elsewhere with other ids
    the copy of one whose does not. Where nothing tells, both rows count.
    """
    R = len(view.ids)
    original = np.isin(links.source * R + links.row, owners.row * R + owners.source)
    moved = np.isin(view.trace.rows.origin, MOVED) | (view.trace.rows.step < 0)
    of_row, of_source = moved[links.row], moved[links.source]
    original |= of_source & ~of_row
    torn = _torn_prefixes(view, coincidences)
    original |= (of_row == of_source) & torn[links.source] & ~torn[links.row]
    return ~original | np.isin(links.row * R + links.source, owners.row * R + owners.source)


def _torn_prefixes(view: TraceView, coincidences: Coincidences) -> NDArray[np.bool_]:
    """Rows [R] whose token prefix stands in the trace with different ids."""
    nodes = coincidences.nodes
    prefix = view.places.prefix[nodes]
    _, inverse, counts = np.unique(prefix, return_inverse=True, return_counts=True)
    torn = np.zeros(len(view.ids), dtype=bool)
    torn[nodes] = counts[inverse] > 1
    return torn
