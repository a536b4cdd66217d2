"""What the rules look at: the MoE layers of a trace, where each row stands, and what has been counted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.findings import Region
from moeinspect.analysis.requests import fed_rows, not_opted_in
from moeinspect.analysis.rules.cell_facts import CellFacts, cell_facts
from moeinspect.analysis.rules.hashing import prefix_hashes, row_hashes
from moeinspect.analysis.rules.runs import count_up
from moeinspect.trace.schema import Trace, Validity


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Where each row [R] of the file stands.

    `request` is -1 for a row of no request; `index` counts inside the request; `position` is absolute;
    `token` is the token fed there, -1 beyond the request's tokens; `surplus` marks rows that should not
    exist; `prefix` hashes the tokens up to and including this one.
    """

    request: NDArray[np.int64]
    index: NDArray[np.int64]
    position: NDArray[np.int64]
    token: NDArray[np.int64]
    surplus: NDArray[np.bool_]
    prefix: NDArray[np.uint64]


class TraceView:
    """One trace as the rules see it. R rows of the file, M captured MoE layers, K slots.

    `flagged` [R, M] holds the cells that a rule has counted: a cell counts under the first rule that fits.
    """

    def __init__(self, trace: Trace, input_index: int | None = None) -> None:
        self.trace = trace
        self.input = input_index
        axis = trace.axis_layers()
        on_axis = np.flatnonzero(np.isin(axis, trace.model.moe_layers)).astype(np.int64)
        self.layers: NDArray[np.int64] = axis[on_axis]
        """Absolute index of each captured MoE layer [M]."""
        self.axis_position: NDArray[np.int64] = on_axis
        """Place of each captured MoE layer on axis 1 of the ids [M]."""
        ids = trace.rows.expert_ids
        self.ids: NDArray[Any] = ids if len(on_axis) == ids.shape[1] else ids[:, on_axis]
        """Ids of the MoE layers [R, M, K]."""
        self.exempt: NDArray[np.bool_] = np.isin(self.layers, trace.model.capture_exempt_layers)
        """Layers in which duplicates and missing capture are legitimate [M]."""
        self.flagged: NDArray[np.bool_] = np.zeros(self.ids.shape[:2], dtype=bool)
        self.unreadable: NDArray[np.bool_] = np.zeros(len(self.ids), dtype=bool)
        """Rows [R] with something else than ids in a checked layer, as the rules on range found."""

    @property
    def num_experts(self) -> int:
        """E of the model."""
        return self.trace.model.num_experts

    @property
    def top_k(self) -> int:
        """K of the ids as stored."""
        return int(self.ids.shape[2])

    @cached_property
    def checked_layers(self) -> NDArray[np.int64]:
        """Places on axis M of the layers that are not exempt."""
        return np.flatnonzero(~self.exempt).astype(np.int64)

    @cached_property
    def expected_rows(self) -> NDArray[np.int64]:
        """Rows that each request [N] should have: one for each token that was fed from `start_pos` on."""
        return fed_rows(self.trace.requests)

    @cached_property
    def not_opted_in(self) -> NDArray[np.bool_]:
        """Requests [N] that did not ask for routed experts."""
        return not_opted_in(self.trace)

    @cached_property
    def places(self) -> RowPlaces:
        """Where each row stands."""
        return _places(self.trace, len(self.ids))

    @cached_property
    def checked(self) -> NDArray[np.bool_]:
        """Rows [R] whose cells are checked: claimed to be real (or invalid), and with a token."""
        claimed = np.isin(self.trace.rows.validity, (Validity.REAL, Validity.INVALID))
        return claimed & (self.places.request >= 0) & ~self.places.surplus

    @cached_property
    def facts(self) -> CellFacts:
        """What each cell [R, M] looks like by itself."""
        return cell_facts(self.ids, self.num_experts)

    @cached_property
    def joined(self) -> NDArray[np.bool_]:
        """Whether each row [R] follows the one before it in the same request."""
        request = self.places.request
        joined = np.zeros(len(request), dtype=bool)
        joined[1:] = (request[1:] == request[:-1]) & (request[1:] >= 0)
        return joined

    @cached_property
    def content(self) -> NDArray[np.uint64]:
        """Hash of each row's ids over the checked layers [R]."""
        return row_hashes(self.ids, self.checked_layers)

    @cached_property
    def content_run(self) -> NDArray[np.int64]:
        """Number of the run of equal neighbouring rows that each row [R] is in."""
        goes_on = self.joined.copy()
        goes_on[1:] &= self.content[1:] == self.content[:-1]
        return np.cumsum(~goes_on, dtype=np.int64)

    def whole_rows(self) -> NDArray[np.bool_]:
        """Rows [R] that a rule over all layers may look at: checked, readable, with a cell left to count."""
        if not len(self.checked_layers):
            return np.zeros(len(self.ids), dtype=bool)
        whole: NDArray[np.bool_] = self.checked & ~self.unreadable
        if self.flagged.any():
            whole[whole] = ~self.flagged[whole][:, self.checked_layers].all(axis=1)
        return whole

    def claim(self, cells: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The cells [R, M] of `cells` that no earlier rule has counted; from now on they are counted."""
        new = cells & ~self.flagged
        self.flagged |= new
        return new

    def claim_rows(self, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Like `claim` for the cells of these rows [R] in all checked layers."""
        return self.claim(rows[:, None] & ~self.exempt[None, :])

    def request_id(self, request: int) -> str:
        """The id under which a request is reported."""
        return str(self.trace.requests.id[request])

    def region(self, request: int, first: int, last: int) -> Region:
        """Where rows [first, last) of a request lie."""
        requests = self.trace.requests
        prompt_rows = int(requests.prompt_len[request]) - int(requests.start_pos[request])
        if last <= prompt_rows:
            return "prompt"
        return "output" if first >= prompt_rows else "both"


def _places(trace: Trace, num_file_rows: int) -> RowPlaces:
    requests = trace.requests
    N, R = len(requests), num_file_rows
    num_rows = requests.num_rows.astype(np.int64)
    number = np.repeat(np.arange(N, dtype=np.int64), num_rows)
    inside = count_up(num_rows)
    row = requests.row_start[number] + inside
    request = np.full(R, -1, dtype=np.int64)
    index, position, token = (np.full(R, -1, dtype=np.int64) for _ in range(3))
    prefix = np.zeros(R, dtype=np.uint64)
    request[row], index[row] = number, inside
    position[row] = inside + requests.start_pos[number]
    num_tokens = requests.prompt_len.astype(np.int64) + requests.output_len
    fed = (request >= 0) & (position < num_tokens[request] if N else False)
    flat, hashes = _token_prefixes(trace, num_tokens)
    first_token = np.concatenate([[0], np.cumsum(num_tokens)])
    at = first_token[request[fed]] + position[fed]
    token[fed], prefix[fed] = flat[at], hashes[at]
    surplus = (request >= 0) & (index >= fed_rows(requests)[request] if N else False)
    return RowPlaces(request, index, position, token, surplus, prefix)


def _token_prefixes(
    trace: Trace, num_tokens: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """All tokens, request after request [T], and the prefix hash at each."""
    inside = count_up(num_tokens)
    start = np.repeat(trace.requests.token_start, num_tokens)
    flat = trace.tokens[start + inside].astype(np.int64)
    first = np.arange(len(flat), dtype=np.int64) - inside
    return flat, prefix_hashes(flat, inside, first)
