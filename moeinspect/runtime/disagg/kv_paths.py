"""How KV travels in this run: the paths of leaders, and those of followers with their shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moeinspect.runtime.device.stream import Device
from moeinspect.runtime.disagg.gloo_path import GlooGroup, GlooReceivePath, GlooSendPath
from moeinspect.runtime.disagg.kv_receiver import ReceivePath
from moeinspect.runtime.disagg.kv_sender import IsDone, SendPath
from moeinspect.runtime.disagg.led_paths import LedReceivePath, LedSendPath
from moeinspect.runtime.disagg.shm_path import ShmReceivePath, ShmSendPath
from moeinspect.runtime.memory.kv_cache import KVCache
from moeinspect.runtime.parallel.commands import ReceiveKV, SendKV
from moeinspect.runtime.parallel.roster import DECODE
from moeinspect.runtime.parallel.team import LedTeam, Team
from moeinspect.runtime.processes.worker_args import WorkerArgs

Wake = Callable[[], None]


def send_path(
    args: WorkerArgs, caches: Sequence[KVCache], device: Device, wake: Wake, team: Team
) -> SendPath:
    """A prefill leader's, with its team's."""
    own = _own_send_path(args, caches, device, wake)
    return LedSendPath(own, team) if isinstance(team, LedTeam) else own


def receive_path(
    args: WorkerArgs, caches: Sequence[KVCache], device: Device, wake: Wake, team: Team
) -> ReceivePath:
    """A decode leader's, with its team's."""
    if args.config.transfer != "gloo":
        return ShmReceivePath()
    own = GlooReceivePath(_gloo_group(args), caches, device, wake)
    return LedReceivePath(own, team) if isinstance(team, LedTeam) else own


class FollowerKV:
    """The transfers that a follower is told of: each is with its counterpart in the other leader's team."""

    def __init__(self, args: WorkerArgs, caches: Sequence[KVCache], device: Device, wake: Wake) -> None:
        self._index, self._roster = args.index, args.roster
        self._is_shared = args.config.transfer != "gloo"
        self._sends: SendPath | None = None
        self._receives: ReceivePath | None = None
        if args.seat.role != DECODE:
            self._sends = _own_send_path(args, caches, device, wake)
        elif not self._is_shared:
            self._receives = GlooReceivePath(_gloo_group(args), caches, device, wake)

    def start(self, command: SendKV | ReceiveKV) -> IsDone | None:
        """Starts one; None if there is nothing to do."""
        if isinstance(command, SendKV) and self._sends is not None:
            peer = self._peer(command.decode)
            return self._sends.send(peer, command.from_slots, command.to_slots, command.transfer)
        if isinstance(command, ReceiveKV) and self._receives is not None:
            return self._receives.receive(self._peer(command.prefill), command.slots, command.transfer)
        raise RuntimeError(f"{type(command).__name__} makes no sense here")

    def _peer(self, leader: int) -> int:
        """Whom this process exchanges KV with; shared memory is known by its leader."""
        return leader if self._is_shared else self._roster.counterpart(self._index, leader)


def _gloo_group(args: WorkerArgs) -> GlooGroup:
    return GlooGroup(args.rendezvous, args.index, args.roster.names, args.channels.host)


def _own_send_path(args: WorkerArgs, caches: Sequence[KVCache], device: Device, wake: Wake) -> SendPath:
    """This process's; shared memory is known by the leader of the counterpart that has it."""
    if args.config.transfer == "gloo":
        return GlooSendPath(_gloo_group(args), caches, device, wake)
    destinations = {
        leader: [
            KVCache(cache.shape, tensor)
            for cache, tensor in zip(
                caches, args.kv_of(args.roster.counterpart(args.index, leader)), strict=True
            )
        ]
        for leader in args.roster.decode
    }
    return ShmSendPath(caches, destinations, device, wake)
