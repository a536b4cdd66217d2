"""A rank without a scheduler: does on its share of the target what its leader tells it."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Protocol

import torch

from moeinspect.runtime.memory.host_tier import HostBuffers
from moeinspect.runtime.parallel.commands import (
    CopyToDevice,
    CopyToHost,
    Done,
    DropHostBuffer,
    Initialize,
    MakeHostBuffer,
    MoveKV,
    ReceiveKV,
    ReplaceModel,
    RunForward,
    SendKV,
    Stop,
)
from moeinspect.runtime.worker.target_rank import TargetRank

_CHECK_S = 0.2
"""How often an idle follower looks whether its streams have failed."""


class _IsDone(Protocol):
    def query(self) -> bool: ...


Transfer = Callable[[SendKV | ReceiveKV], _IsDone | None]
"""Starts a transfer of this rank's KV; None if there is nothing to wait for."""


class Follower:
    """Runs commands in their order: transfers on streams of their own, the rest on the compute stream."""

    def __init__(self, rank: TargetRank, leader: Connection) -> None:
        self._rank = rank
        self._leader = leader
        self._kv = rank.kv_caches[0]
        self._buffers: dict[int, HostBuffers] = {}
        self._updates = [update.model for update in rank.weight_updates]
        self._transfer: Transfer | None = None
        self._started: list[tuple[int, _IsDone | None]] = []
        self._lock = threading.Lock()
        self._num_forwards = 0
        self._handlers: dict[type, Callable[[Any], None]] = {
            Initialize: self._initialize,
            RunForward: self._forward,
            MoveKV: self._move,
            MakeHostBuffer: self._make_buffer,
            DropHostBuffer: self._drop_buffer,
            CopyToHost: self._to_host,
            CopyToDevice: self._to_device,
            SendKV: self._start_transfer,
            ReceiveKV: self._start_transfer,
            ReplaceModel: self._replace_model,
        }

    def await_start(self) -> None:
        """Does what the leader says first: build backends and graphs.

        Raises:
            EOFError: the leader has gone.
        """
        self._handle(self._next())

    def set_transfer(self, transfer: Transfer) -> None:
        """How KV leaves or reaches this rank; what it starts calls `transfer_ended` when it is over."""
        self._transfer = transfer

    def serve(self) -> None:
        """Follows until `Stop`.

        Raises:
            EngineError: a stream failed.
            EOFError: the leader has gone.
        """
        while not isinstance(command := self._next(), Stop):
            self._handle(command)
        self._rank.device.compute.synchronize()

    def transfer_ended(self) -> None:
        """Tells the leader which transfers are over; may be called by any thread."""
        with self._lock:
            over = [number for number, event in self._started if event is None or event.query()]
            self._started = [entry for entry in self._started if entry[0] not in over]
            for number in over:
                self._leader.send(Done(number))

    def _next(self) -> object:
        while not self._leader.poll(_CHECK_S):
            self._rank.device.check()
        command: object = pickle.loads(self._leader.recv_bytes())
        self._rank.device.check()
        return command

    def _handle(self, command: object) -> None:
        self._handlers[type(command)](command)

    def _on_compute(self, work: Callable[[], None], kind: str) -> None:
        self._rank.device.compute.submit(work, kind=kind, step=self._num_forwards)

    def _initialize(self, command: Initialize) -> None:
        self._rank.models[0].keep_hidden(command.kept_layers)
        self._rank.initialize()

    def _forward(self, command: RunForward) -> None:
        batch, rank, gathering = command.batch, self._rank, self._rank.gathering
        if gathering is None:
            raise RuntimeError("a rank that follows has others beside it")

        def run() -> None:
            if batch.num_rows == 0:
                rank.forwards.compute_idle(batch)
            else:
                output = rank.forwards.compute(batch)
                if output.gathered is not None:
                    gathering.send(rank.capturer, output.gathered)

        self._num_forwards += 1
        self._on_compute(run, batch.mode.value if batch.num_rows else "idle")

    def _move(self, command: MoveKV) -> None:
        self._on_compute(lambda: self._kv.move(command.from_slots, command.to_slots), "kv-move")

    def _make_buffer(self, command: MakeHostBuffer) -> None:
        self._buffers[command.number] = HostBuffers(command.number, [self._kv], command.num_slots)

    def _drop_buffer(self, command: DropHostBuffer) -> None:
        del self._buffers[command.number]  # work that is enqueued still holds it

    def _to_host(self, command: CopyToHost) -> None:
        buffer = self._buffers[command.number].tensors[0]
        slots, places = torch.from_numpy(command.slots), torch.from_numpy(command.places)
        self._on_compute(lambda: _copy(self._kv.data, slots, buffer, places), "kv-backup")

    def _to_device(self, command: CopyToDevice) -> None:
        buffer = self._buffers[command.number].tensors[0]
        slots, places = torch.from_numpy(command.slots), torch.from_numpy(command.places)
        self._on_compute(lambda: _copy(buffer, places, self._kv.data, slots), "kv-restore")

    def _replace_model(self, _: ReplaceModel) -> None:
        model = self._updates.pop(0)
        self._rank.device.compute.synchronize()
        self._rank.forwards.replace_model(model)

    def _start_transfer(self, command: SendKV | ReceiveKV) -> None:
        if self._transfer is None:
            raise RuntimeError("this rank has no way to transfer KV")
        device = self._rank.device
        # What computed the KV, or read what these slots held before, was told earlier and may not have run.
        device.compute.synchronize()
        with self._lock:
            self._started.append((command.ticket, self._transfer(command)))
        self.transfer_ended()


def _copy(source: torch.Tensor, taken: torch.Tensor, target: torch.Tensor, given: torch.Tensor) -> None:
    target[:, :, given] = source[:, :, taken]
