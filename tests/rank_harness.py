"""Ranks of one worker as threads of this process, which talk over gloo."""

import threading

import torch

from moeinspect.runtime.parallel.communicator import Communicator
from moeinspect.runtime.parallel.links import file_store


def on_ranks(layout, folder, work):
    """What `work(ranks)` returns on each rank of `layout`; raises what the first of them raised."""
    names = [f"rank-{rank}" for rank in range(layout.size)]
    results, errors = [None] * layout.size, []

    def body(rank):
        torch.set_num_threads(1)
        try:
            results[rank] = work(Communicator(layout, rank, file_store(str(folder / "store")), names))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(layout.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
