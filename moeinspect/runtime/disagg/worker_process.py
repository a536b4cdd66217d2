"""The body of a prefill or decode worker process."""

from __future__ import annotations

import signal

import torch

from moeinspect.errors import MoeinspectError
from moeinspect.runtime.disagg.channel import Inbox
from moeinspect.runtime.disagg.decode_half import DecodeHalf
from moeinspect.runtime.disagg.gloo_path import GlooGroup, GlooReceivePath, GlooSendPath
from moeinspect.runtime.disagg.messages import Failed
from moeinspect.runtime.disagg.prefill_half import PrefillHalf
from moeinspect.runtime.disagg.shm_path import ShmReceivePath, ShmSendPath
from moeinspect.runtime.disagg.unified_half import UnifiedHalf
from moeinspect.runtime.disagg.worker_args import WorkerArgs
from moeinspect.runtime.disagg.worker_half import WorkerHalf
from moeinspect.runtime.memory.kv_cache import KVCache
from moeinspect.runtime.parallel.links import LinkError
from moeinspect.runtime.parallel.roster import DECODE, UNIFIED
from moeinspect.runtime.processes.heartbeat import beating
from moeinspect.runtime.worker.worker import DTYPES, Worker


def worker_main(args: WorkerArgs) -> None:
    """Runs a worker until the balancer says so or is gone; failures are sent to the balancer."""
    # Ctrl-C reaches the whole process group; only the balancer decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(args.config.threads)
    with beating(args.channels.heartbeat):
        _work(args)


def _work(args: WorkerArgs) -> None:
    try:
        _serve(args)
    except (EOFError, ConnectionError):
        return
    except LinkError as error:
        _send_failure(args, Failed(error.message, error.hint, error.peer))
    except MoeinspectError as error:
        _send_failure(args, Failed(error.message, error.hint))
    except Exception as error:
        _send_failure(args, Failed(f"{type(error).__name__}: {error}"))


def _send_failure(args: WorkerArgs, failure: Failed) -> None:
    try:
        args.channels.balancer.send(failure)
    except (EOFError, ConnectionError):
        return


def _serve(args: WorkerArgs) -> None:
    dtype = DTYPES[args.config.dtype]
    shared_kv = {
        index: [region.tensor().view(dtype) for region in regions] for index, regions in args.regions.items()
    }
    own_kv = shared_kv.get(args.index)
    worker = _load(args, own_kv)
    for region in (region for regions in args.regions.values() for region in regions):
        region.close()
    half = _half(worker, args, shared_kv)
    try:
        try:
            half.serve()
        finally:
            half.close()
    finally:
        worker.close()


def _load(args: WorkerArgs, own_kv: list[torch.Tensor] | None) -> Worker:
    return Worker(
        args.config,
        args.plan,
        args.index,
        kv_storage=own_kv,
        prefix_cache=args.seat.role != DECODE,
        jitter=args.jitter,
    )


def _half(worker: Worker, args: WorkerArgs, shared_kv: dict[int, list[torch.Tensor]]) -> WorkerHalf:
    inbox = Inbox(args.channels)
    caches, device = worker.kv_caches, worker.device
    role = args.seat.role
    if role == UNIFIED:
        return UnifiedHalf(worker, args, inbox)
    if args.config.transfer == "gloo":
        group = GlooGroup(args.rendezvous, args.index, args.roster.names)
        if role == DECODE:
            return DecodeHalf(worker, args, inbox, GlooReceivePath(group, caches, device, inbox.wake))
        return PrefillHalf(worker, args, inbox, GlooSendPath(group, caches, device, inbox.wake))
    if role == DECODE:
        return DecodeHalf(worker, args, inbox, ShmReceivePath())
    destinations = {
        index: [KVCache(cache.shape, tensor) for cache, tensor in zip(caches, tensors, strict=True)]
        for index, tensors in shared_kv.items()
    }
    return PrefillHalf(worker, args, inbox, ShmSendPath(caches, destinations, device, inbox.wake))
