"""The body of a worker process: a leader, which schedules, or one of its followers."""

from __future__ import annotations

import signal

import torch

from moeinspect.errors import MoeinspectError
from moeinspect.runtime.disagg.decode_half import DecodeHalf
from moeinspect.runtime.disagg.kv_paths import FollowerKV, receive_path, send_path
from moeinspect.runtime.disagg.prefill_half import PrefillHalf
from moeinspect.runtime.parallel.communicator import Communicator, open_lockstep
from moeinspect.runtime.parallel.links import LinkError
from moeinspect.runtime.parallel.roster import DECODE, UNIFIED
from moeinspect.runtime.parallel.team import ALONE, LedTeam, Team
from moeinspect.runtime.processes.channel import Inbox
from moeinspect.runtime.processes.heartbeat import beating
from moeinspect.runtime.processes.messages import Failed, Goodbye, Ready
from moeinspect.runtime.processes.unified_half import UnifiedHalf
from moeinspect.runtime.processes.worker_args import WorkerArgs
from moeinspect.runtime.processes.worker_half import WorkerHalf
from moeinspect.runtime.scheduler.lockstep import Lockstep
from moeinspect.runtime.worker.follower import Follower
from moeinspect.runtime.worker.target_rank import TargetRank
from moeinspect.runtime.worker.worker import Worker


def worker_main(args: WorkerArgs) -> None:
    """Runs a worker until the balancer says so or is gone; failures are sent to the balancer."""
    # Ctrl-C reaches the whole process group; only the balancer decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(args.config.threads)
    with beating(args.channels.heartbeat):
        _work(args)


def _work(args: WorkerArgs) -> None:
    try:
        if args.seat.place.is_leader:
            _lead(args)
        else:
            _follow(args)
    except (EOFError, ConnectionError):
        return
    except LinkError as error:
        _send_failure(args, Failed(error.message, error.hint, broken_link=True, peer=error.peer))
    except MoeinspectError as error:
        _send_failure(args, Failed(error.message, error.hint))
    except Exception as error:
        _send_failure(args, Failed(f"{type(error).__name__}: {error}"))


def _send_failure(args: WorkerArgs, failure: Failed) -> None:
    try:
        args.channels.balancer.send(failure)
    except (EOFError, ConnectionError):
        return


def _lead(args: WorkerArgs) -> None:
    ranks = _meet_ranks(args)
    team, lockstep = _team(args, ranks), _lockstep(args, ranks)
    worker = Worker(
        args.config,
        args.plan,
        args.index,
        ranks=ranks,
        team=team,
        kv_storage=args.own_kv(),
        prefix_cache=args.seat.role != DECODE,
        jitter=args.jitter,
    )
    half = _half(worker, args, lockstep)
    args.close_regions()
    try:
        try:
            half.serve()
        finally:
            half.close()
    finally:
        worker.close()


def _follow(args: WorkerArgs) -> None:
    leader = args.channels.peers[args.roster.leader_of(args.index)]
    rank = TargetRank(
        args.config,
        args.plan,
        args.index,
        ranks=_meet_ranks(args),
        kv_storage=args.own_kv(),
        jitter=args.jitter,
    )
    follower = Follower(rank, leader)
    follower.await_start()
    if args.seat.role != UNIFIED:
        caches, device = rank.kv_caches, rank.device
        follower.set_transfer(FollowerKV(args, caches, device, follower.transfer_ended).start)
    args.close_regions()
    try:
        args.channels.balancer.send(Ready())
        follower.serve()
        args.channels.balancer.send(Goodbye(rank.log.drain()))
    finally:
        rank.close()


def _meet_ranks(args: WorkerArgs) -> Communicator | None:
    """The other ranks of this worker; None if there are none."""
    layout, roster = args.roster.layout, args.roster
    if layout.size == 1:
        return None
    own = roster.ranks_of_worker(args.index)
    return Communicator(
        layout,
        args.index - own.start,
        args.store(f"worker-{own.start}"),
        [roster.names[i] for i in own],
        host=args.channels.host,
    )


def _team(args: WorkerArgs, ranks: Communicator | None) -> Team:
    if ranks is None:
        return ALONE
    return LedTeam({i: args.channels.peers[i] for i in args.roster.team(args.index)}, ranks.dp)


def _lockstep(args: WorkerArgs, ranks: Communicator | None) -> Lockstep | None:
    if ranks is None or ranks.layout.dp == 1:
        return None
    own = args.roster.ranks_of_worker(args.index)
    names = [args.roster.names[i] for i in own]
    store = args.store(f"worker-{own.start}")
    return Lockstep(open_lockstep(ranks.layout, ranks.rank, store, names, host=args.channels.host))


def _half(worker: Worker, args: WorkerArgs, lockstep: Lockstep | None) -> WorkerHalf:
    inbox, role = Inbox(args.channels), args.seat.role
    if role == UNIFIED:
        return UnifiedHalf(worker, args, inbox, lockstep)
    if role == DECODE:
        path = receive_path(args, worker.kv_caches, worker.device, inbox.wake, worker.team)
        return DecodeHalf(worker, args, inbox, lockstep, path)
    sends = send_path(args, worker.kv_caches, worker.device, inbox.wake, worker.team)
    return PrefillHalf(worker, args, inbox, lockstep, sends)
