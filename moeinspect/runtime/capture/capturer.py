"""Records the experts that the target's routers chose, as SGLang's `state_capturer` does.

Mirrors `sglang/srt/state_capturer/{base,routed_experts}.py` (0.5.23): a device buffer by row of the
running forward, a delayed device-to-host copy, and a host buffer by KV slot that starts as zeros and
keeps no mark of what was written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class CaptureShape:
    """Sizes and contents of the capture buffers; ids are below `num_experts`.

    `num_shared_columns` are room for the columns of fused shared experts, which belong to no router's
    choice: there are none but under fault `shared-expert-column`.
    """

    layer_ids: tuple[int, ...]
    top_k: int
    num_experts: int
    max_tokens: int
    num_slots: int
    with_weights: bool = False
    with_margins: bool = False
    num_shared_columns: int = 0

    @property
    def width(self) -> int:
        """Columns of the ids: K, and those of shared experts."""
        return self.top_k + self.num_shared_columns


class CaptureBuffer:
    """Ids [n, L, K] uint8 or int16, and on request weights [n, L, K] and margins [n, L] float32.

    One class serves the device buffer (n = rows of a forward) and the host buffer (n = KV slots).
    """

    def __init__(self, shape: CaptureShape, n: int) -> None:
        num_layers = len(shape.layer_ids)
        id_dtype = torch.uint8 if shape.num_experts <= 256 else torch.int16
        self.ids = torch.zeros(n, num_layers, shape.width, dtype=id_dtype)
        self.weights = torch.zeros(n, num_layers, shape.width) if shape.with_weights else None
        self.margins = torch.zeros(n, num_layers) if shape.with_margins else None

    def tensors(self) -> list[torch.Tensor]:
        """The tensors that travel together, ids first."""
        return [t for t in (self.ids, self.weights, self.margins) if t is not None]

    def move(self, from_rows: torch.Tensor, to_rows: torch.Tensor) -> None:
        """Copies rows [n] to other places [n], all of them read before any is written."""
        for tensor in self.tensors():
            tensor[to_rows] = tensor[from_rows]

    def store(self, slots: torch.Tensor, rows: Sequence[torch.Tensor]) -> None:
        """Puts `rows` [n, ...], as `tensors` orders them, under `slots` [n]."""
        for tensor, rows_of_one in zip(self.tensors(), rows, strict=True):
            tensor[slots] = rows_of_one

    def rows_of(self, slots: torch.Tensor) -> list[torch.Tensor]:
        """Copies of the rows of `slots` [n], ids first; whatever stands there."""
        return [tensor[slots] for tensor in self.tensors()]


class TopkCaptureOutput:
    """The captured rows of one forward on their way to the host buffer.

    `rows` are device tensors [n, ...] and become host tensors when `copy_to_host` has run on the copy
    stream. `finalize` stores them by KV slot; it must run after the step's `copy_done`, or it reads rows
    that have not arrived.
    """

    def __init__(self, host: CaptureBuffer, slots: torch.Tensor, rows: Sequence[torch.Tensor]) -> None:
        self._host = host
        self._slots = slots
        self._device_rows = list(rows)
        self._host_rows = [torch.zeros_like(rows_of_one) for rows_of_one in rows]
        self._moves: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._is_stored = False

    @property
    def num_rows(self) -> int:
        """Number of captured rows."""
        return int(self._slots.shape[0])

    def copy_to_host(self) -> None:
        """Device to host; runs on the copy stream."""
        for host_rows, device_rows in zip(self._host_rows, self._device_rows, strict=True):
            host_rows.copy_(device_rows)

    def finalize(self) -> None:
        """Stores the rows in the host buffer under their KV slots; runs on the host after `copy_done`."""
        self._store()
        self._is_stored = True
        for from_slots, to_slots in self._moves:
            self._host.move(from_slots, to_slots)

    def move(self, from_slots: torch.Tensor, to_slots: torch.Tensor) -> None:
        """The KV of these rows was moved to other slots [n]: what is stored of them moves, too.

        At once if the rows are stored, else right after.
        """
        if self._is_stored:
            self._host.move(from_slots, to_slots)
        else:
            self._moves.append((from_slots, to_slots))

    def _store(self) -> None:
        self._host.store(self._slots, self._host_rows)


class RoutedExpertsCapturer:
    """The process-wide recorder; a process that serves a target model has one, a draft never makes one."""

    def __init__(self, shape: CaptureShape) -> None:
        self.shape = shape
        self.device_buffer = CaptureBuffer(shape, shape.max_tokens)
        self.host_buffer = CaptureBuffer(shape, shape.num_slots)
        self._column = {layer_id: i for i, layer_id in enumerate(shape.layer_ids)}

    def has_layer(self, layer_id: int) -> bool:
        """Whether the buffers hold a column for this absolute layer index."""
        return layer_id in self._column

    def ids_view(self, layer_id: int, num_rows: int) -> torch.Tensor:
        """Where the ids of the running forward's first `num_rows` rows go: [num_rows, K], strided."""
        return self.device_buffer.ids[:num_rows, self._column[layer_id]]

    def capture_values(
        self, layer_id: int, weights: torch.Tensor, router_logits: torch.Tensor | None
    ) -> None:
        """Stores routing weights [n, K] and margins beside the ids, where the run asked for them.

        Without `router_logits` [n, E] nothing was ranked: the margin is +inf.
        """
        n, column = weights.shape[0], self._column[layer_id]
        if self.device_buffer.weights is not None:
            view = self.device_buffer.weights[:n, column]
            view[:, : weights.shape[1]] = weights[:, : view.shape[1]]
        if self.device_buffer.margins is not None:
            margins = torch.inf if router_logits is None else logit_margin(router_logits, self.shape.top_k)
            self.device_buffer.margins[:n, column] = margins

    def on_forward_end(self, slots: torch.Tensor, *, clone: bool = True) -> TopkCaptureOutput:
        """The rows of the forward that just ran, cloned before the next one overwrites the buffer.

        Runs on the compute stream. `slots` [n] are the KV slots that the forward wrote. Without `clone`
        the output reads the shared buffer whenever its copy runs (fault `buffer-reuse`).
        """
        n = slots.shape[0]
        rows = [tensor[:n] for tensor in self.device_buffer.tensors()]
        if clone:
            rows = [tensor.clone() for tensor in rows]
        return TopkCaptureOutput(self.host_buffer, slots.clone(), rows)

    def rows_of(self, slots: torch.Tensor) -> list[torch.Tensor]:
        """The host buffer's rows of these KV slots [n], ids first; whatever stands there."""
        return self.host_buffer.rows_of(slots)

    def put_rows(self, slots: torch.Tensor, rows: Sequence[torch.Tensor]) -> None:
        """Stores rows, as `rows_of` gave them, under KV slots [n]: they follow KV that was moved."""
        self.host_buffer.store(slots, rows)


def logit_margin(router_logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """k-th best minus best unselected logit of each row [n], float32; +inf if every expert is chosen."""
    if top_k >= router_logits.shape[-1]:
        return torch.full(router_logits.shape[:1], torch.inf)
    best = torch.topk(router_logits.float(), top_k + 1, dim=-1).values
    return best[:, top_k - 1] - best[:, top_k]


CapturerFactory = Callable[[CaptureShape], RoutedExpertsCapturer]

_global_capturer: RoutedExpertsCapturer | None = None


def set_global_experts_capturer(capturer: RoutedExpertsCapturer | None) -> None:
    """Makes `capturer` the one of this process (None: capture is off)."""
    global _global_capturer
    _global_capturer = capturer


def get_global_experts_capturer() -> RoutedExpertsCapturer | None:
    """The capturer of this process, if there is one."""
    return _global_capturer
