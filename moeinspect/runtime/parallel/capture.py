"""What several ranks captured in one forward, brought together in the leader of the data-parallel rank.

A rank's device buffer holds its layers and the rows that it routed: those of all data-parallel ranks as far
as they stand on its tensor-parallel rank. The leader lays them out as one rank alone would have captured the
gathered batch, and leaves in its device buffer the part that belongs to its data-parallel rank: from there on
it is as if the process were alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from moeinspect.runtime.capture.capturer import CaptureBuffer, CaptureShape, RoutedExpertsCapturer
from moeinspect.runtime.faults import DP_SLICE, PP_STAGE, TP_SHARD, ActiveFaults
from moeinspect.runtime.forward_batch import ForwardMode
from moeinspect.runtime.models.config import ModelConfig
from moeinspect.runtime.parallel.communicator import Communicator
from moeinspect.runtime.parallel.layout import RankPlace
from moeinspect.runtime.parallel.packing import pack_rows, unpack_rows
from moeinspect.runtime.parallel.rows import GatheredRows
from moeinspect.runtime.parallel.shard import ModelShard
from moeinspect.runtime.parallel.tags import CAPTURED


class RankCapture:
    """Gathers the captured rows of each forward; every rank has one. Runs on the compute stream.

    `config` is the target's, `shape` that of its ranks' capturers.
    """

    def __init__(
        self, ranks: Communicator, config: ModelConfig, shape: CaptureShape, faults: ActiveFaults
    ) -> None:
        self._ranks = ranks
        self._config = config
        self._shape = shape
        self._faults = faults

    def send(self, capturer: RoutedExpertsCapturer, rows: GatheredRows) -> None:
        """A follower's end of a forward: one message to the leader.

        Raises:
            LinkError: the leader has gone.
        """
        place = self._ranks.place
        layers = self._layers_of(place, rows)
        if layers:
            captured = _rows_of(capturer.device_buffer, rows.num_gathered(place.tp), self._columns(layers))
            self._ranks.replica.send(pack_rows(captured), self._ranks.leader, CAPTURED)

    def gather(self, capturer: RoutedExpertsCapturer, rows: GatheredRows, mode: ForwardMode) -> None:
        """The leader's end of a forward: brings all ranks' rows together, and keeps its own.

        What nobody sent is zero. The rows of this data-parallel rank stand behind those of the ranks before;
        fault `dp-slice` takes a request of theirs for one row unless `mode` is prefill.

        Raises:
            LinkError: a follower has gone.
        """
        common = CaptureBuffer(capturer.shape, rows.total)
        for rank in self._ranks.replica.members:
            place = self._ranks.layout.place(rank)
            layers = self._layers_of(place, rows)
            if not layers:
                continue
            n = rows.num_gathered(place.tp)
            if rank == self._ranks.rank:
                layers = tuple(layer for layer in layers if capturer.has_layer(layer))
                captured = _rows_of(capturer.device_buffer, n, _columns(capturer.shape, layers))
            else:
                captured = self._receive(rank, n, len(layers))
            _put(captured, rows.places(place.tp), layers, common, capturer.shape)
        own = self._ranks.place.dp
        by_requests = DP_SLICE in self._faults and mode is not ForwardMode.PREFILL
        start = rows.requests_before(own) if by_requests else rows.start(own)
        for kept, all_rows in zip(capturer.device_buffer.tensors(), common.tensors(), strict=True):
            kept[: rows.dp_rows[own]] = all_rows[start : start + rows.dp_rows[own]]

    def _layers_of(self, place: RankPlace, rows: GatheredRows) -> tuple[int, ...]:
        """The layers whose rows the leader gets from the rank at `place`; none if it routed nothing.

        Fault `tp-shard` leaves the other tensor-parallel ranks out, `pp-stage` the later stages.
        """
        left_out = (TP_SHARD in self._faults and place.tp > 0) or (PP_STAGE in self._faults and place.pp > 0)
        if left_out or rows.num_gathered(place.tp) == 0:
            return ()
        return ModelShard(self._ranks.layout, place).moe_layers(self._config)

    def _receive(self, rank: int, num_rows: int, num_layers: int) -> list[torch.Tensor]:
        layers = self._shape.layer_ids[:num_layers]
        like = CaptureBuffer(replace(self._shape, layer_ids=layers), 0).tensors()
        width = pack_rows(like).shape[1]
        packed = self._ranks.replica.receive((num_rows, width), torch.uint8, rank, CAPTURED)
        return unpack_rows(packed, like)

    def _columns(self, layers: Sequence[int]) -> list[int]:
        return _columns(self._shape, layers)


def _columns(shape: CaptureShape, layers: Sequence[int]) -> list[int]:
    return [shape.layer_ids.index(layer) for layer in layers]


def _rows_of(buffer: CaptureBuffer, num_rows: int, columns: list[int]) -> list[torch.Tensor]:
    return [tensor[:num_rows, columns] for tensor in buffer.tensors()]


def _put(
    captured: Sequence[torch.Tensor],
    places: torch.Tensor,
    layers: Sequence[int],
    target: CaptureBuffer,
    shape: CaptureShape,
) -> None:
    """Stores `captured` [n, len(layers), ...] under the rows `places` [n] of a buffer of `shape`.

    The shape is another model's if a draft replaced the capturer (fault `draft-recreates-capturer`): then
    layers and choices that it has no room for are lost.
    """
    known = [i for i, layer in enumerate(layers) if layer in shape.layer_ids]
    columns = torch.tensor(_columns(shape, [layers[i] for i in known]), dtype=torch.int64)
    for to_rows, from_rows in zip(target.tensors(), captured, strict=True):
        if to_rows.shape[2:] == from_rows.shape[2:]:
            to_rows[places[:, None], columns] = from_rows[:, known].to(to_rows.dtype)
