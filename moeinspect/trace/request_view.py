"""One request of a trace on disk, its arrays by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.errors import InputError
from moeinspect.trace.columns import MARGIN_PATH, ROW_COLUMNS, WEIGHTS_PATH

if TYPE_CHECKING:
    from moeinspect.trace.opened import OpenTrace


@dataclass(frozen=True, slots=True)
class RequestView:
    """Request number `number` of `trace`. Each array is read when it is asked for; not to be written to.

    n rows; row i is the token that was fed at position `start_pos + i`.
    """

    trace: OpenTrace
    number: int

    @property
    def id(self) -> str:
        """The request's id."""
        return str(self.trace.requests.id[self.number])

    @property
    def sample(self) -> int:
        """Which of several answers to one prompt."""
        return int(self.trace.requests.sample[self.number])

    @property
    def start_pos(self) -> int:
        """Position of the first row's token."""
        return int(self.trace.requests.start_pos[self.number])

    @property
    def prompt_ids(self) -> NDArray[np.int32]:
        """Token ids of the prompt [P]."""
        return self.trace.tokens_of(self.number)[: int(self.trace.requests.prompt_len[self.number])]

    @property
    def output_ids(self) -> NDArray[np.int32]:
        """Token ids of the output [N]."""
        return self.trace.tokens_of(self.number)[int(self.trace.requests.prompt_len[self.number]) :]

    def __len__(self) -> int:
        return int(self.trace.requests.num_rows[self.number])

    @property
    def expert_ids(self) -> NDArray[Any]:
        """Ids [n, L, K] in the trace's type, uint8 up to 256 experts, else uint16."""
        return self.experts()

    def experts(self, start: int = 0, stop: int | None = None, layer: int | None = None) -> NDArray[Any]:
        """Ids of rows [start, stop) of the request [rows, L, K], or of one layer of the model [rows, K].

        Raises:
            InputError: the rows or the layer are not there, or the ids are damaged.
        """
        rows = self._range(start, stop)
        ids = self.trace.expert_ids(rows.start, rows.stop)
        return ids if layer is None else ids[:, self._axis(layer)]

    @property
    def weights(self) -> NDArray[np.float32] | None:
        """Routing weights [n, L, K]; None if the trace holds none."""
        return self._column(WEIGHTS_PATH) if self.trace.has(WEIGHTS_PATH) else None

    @property
    def margin(self) -> NDArray[np.float32] | None:
        """Margins [n, L]; None if the trace holds none."""
        return self._column(MARGIN_PATH) if self.trace.has(MARGIN_PATH) else None

    def column(self, name: str) -> NDArray[Any]:
        """A column of `/rows` by its name [n], such as `validity`, `origin`, `worker`, `step` or `slot`.

        Where the file lacks it, the value that docs/trace-format.md gives for that.

        Raises:
            InputError: the format has no such column, or it is damaged.
        """
        known = next((column for column in ROW_COLUMNS if column.name == name), None)
        if known is None:
            listed = ", ".join(column.name for column in ROW_COLUMNS)
            raise InputError(f"{self.trace.path}: no column {name!r} of rows", f"there are {listed}")
        rows = self._range(0, None)
        return self.trace.column(known, rows.start, rows.stop)

    def _column(self, path: str) -> NDArray[Any]:
        rows = self._range(0, None)
        return self.trace.source(path).read(rows.start, rows.stop)

    def _range(self, start: int, stop: int | None) -> slice:
        """Rows [start, stop) of the request as rows of the file."""
        rows = self.trace.row_range(self.number)
        stop = len(self) if stop is None else stop
        if not 0 <= start <= stop <= len(self):
            raise InputError(
                f"{self.trace.path}: request {self.id!r} has rows [0, {len(self)}), not [{start}, {stop})"
            )
        return slice(rows.start + start, rows.start + stop)

    def _axis(self, layer: int) -> int:
        places = np.flatnonzero(self.trace.model.layer_indices() == layer)
        if not len(places):
            held = ", ".join(map(str, self.trace.model.layer_indices().tolist()))
            raise InputError(f"{self.trace.path}: no layer {layer}; the trace holds {held}")
        return int(places[0])
