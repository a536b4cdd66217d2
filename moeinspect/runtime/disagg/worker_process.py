"""The body of a prefill or decode worker process."""

from __future__ import annotations

import signal

import torch

from moeinspect.errors import MoeinspectError
from moeinspect.runtime.disagg.halves import DecodeHalf, PrefillHalf, WorkerHalf
from moeinspect.runtime.disagg.messages import Failed, Goodbye, Ready
from moeinspect.runtime.disagg.worker_args import DECODE, WorkerArgs
from moeinspect.runtime.memory.kv_cache import KVCache
from moeinspect.runtime.worker.worker import DTYPES, Worker


def worker_main(args: WorkerArgs) -> None:
    """Runs a worker until the balancer says so or is gone; failures are sent to the balancer."""
    # Ctrl-C reaches the whole process group; only the balancer decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(args.config.threads)
    try:
        _serve(args)
    except (EOFError, ConnectionError):
        return
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
    shared_kv = [region.tensor().view(dtype) for region in args.regions]
    is_decode = args.index == DECODE
    worker = Worker(
        args.config, args.plan, args.index, kv_storage=shared_kv if is_decode else None, jitter=args.jitter
    )
    for region in args.regions:
        region.close()
    try:
        half = _half(worker, args, shared_kv)
        args.channels.balancer.send(Ready())
        for _ in half.run():
            pass
        half.scheduler.pool.check_integrity()
        args.channels.balancer.send(Goodbye(worker.log.drain()))
    finally:
        worker.close()


def _half(worker: Worker, args: WorkerArgs, shared_kv: list[torch.Tensor]) -> WorkerHalf:
    if args.index == DECODE:
        return DecodeHalf(worker, args)
    destinations = [
        KVCache(cache.shape, tensor) for cache, tensor in zip(worker.kv_caches, shared_kv, strict=True)
    ]
    return PrefillHalf(worker, args, destinations)
