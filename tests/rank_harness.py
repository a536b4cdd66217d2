"""Ranks of one worker as threads of this process, which talk over gloo, and the same batches on one rank."""

import random
import threading
from dataclasses import dataclass, replace
from functools import cache

import torch
from model_harness import make_batch

from moeinspect.runtime.capture.capturer import CaptureShape, RoutedExpertsCapturer
from moeinspect.runtime.faults import NO_FAULTS
from moeinspect.runtime.forward_batch import ForwardMode, empty_batch
from moeinspect.runtime.layers.placement import PLAIN_EXPERTS, ExpertOptions
from moeinspect.runtime.memory.kv_cache import KVCache
from moeinspect.runtime.models.builtin import open_builtin
from moeinspect.runtime.models.loader import load_model
from moeinspect.runtime.parallel.capture import RankCapture
from moeinspect.runtime.parallel.communicator import Communicator
from moeinspect.runtime.parallel.links import file_store
from moeinspect.runtime.parallel.shard import WHOLE, ModelShard
from moeinspect.runtime.worker.forward_runner import ForwardRunner
from moeinspect.runtime.worker.graph_runner import GraphRunner

NUM_SLOTS = 256
MAX_ROWS = 256

_of_thread = threading.local()


cached_builtin = cache(open_builtin)
"""Draws the weights of an embedded model once for all ranks."""


def give_threads_capturers(monkeypatch):
    """The capturer is one of the process; here each rank is a thread, and has its own."""
    monkeypatch.setattr("moeinspect.runtime.models.loader.open_builtin", cached_builtin)
    monkeypatch.setattr(
        "moeinspect.runtime.capture.gate.get_global_experts_capturer",
        lambda: getattr(_of_thread, "capturer", None),
    )


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


@dataclass
class Serving:
    """A model and how it is run."""

    name: str = "builtin:random"
    dtype: torch.dtype = torch.float32
    deterministic: bool = True
    graph: bool = False
    experts: ExpertOptions = PLAIN_EXPERTS
    kept_layers: tuple[int, ...] = ()
    faults: object = NO_FAULTS

    def load(self, ranks=None):
        """The model, its KV cache and its capturer, made known to this thread."""
        model = load_model(
            str(self.name),
            dtype=self.dtype,
            deterministic=self.deterministic,
            experts=self.experts,
            ranks=ranks,
        )
        model.keep_hidden(self.kept_layers)
        config, num_dp = model.config, 1 if ranks is None else ranks.layout.dp
        shape = CaptureShape(
            config.moe_layers, config.top_k, config.num_experts, num_dp * MAX_ROWS, NUM_SLOTS, True, True
        )
        capturer = _of_thread.capturer = RoutedExpertsCapturer(shape)
        shard = WHOLE if ranks is None else ModelShard(ranks.layout, ranks.place)
        kv = KVCache(shard.kv_shape(config, NUM_SLOTS, self.dtype))
        more = {"max_rows": 16} if self.graph else {}
        runner = (GraphRunner if self.graph else ForwardRunner)(model, kv, backend="torch", **more)
        runner.initialize()
        return runner, capturer


@dataclass
class Step:
    """What a data-parallel rank runs in one forward: parts of `make_batch`, perhaps none."""

    mode: ForwardMode
    parts: list
    logit_rows: list

    def batch(self, **fields):
        """The batch."""
        if not self.parts:
            return replace(empty_batch(), **fields)
        batch = make_batch(self.parts, self.mode)
        return replace(batch, logit_rows=torch.tensor(self.logit_rows, dtype=torch.int64), **fields)

    @property
    def num_rows(self):
        return sum(len(ids) for ids, _, _ in self.parts)


@dataclass
class Seen:
    """What a forward handed back: logits, kept hidden states, captured rows."""

    logits: torch.Tensor
    hidden: torch.Tensor | None
    captured: list


def draw_steps(vocab, num_dp, seed):
    """Forwards of each data-parallel rank: chunks, single tokens, verify-like runs; now and then no rows."""
    rng = random.Random(seed)
    requests = [
        [[rng.randrange(vocab) for _ in range(rng.randint(1, 24))] for _ in range(3)] for _ in range(num_dp)
    ]
    done = [[0] * 3 for _ in range(num_dp)]
    steps = []
    while any(
        d < len(ids) for ds, rs in zip(done, requests, strict=True) for d, ids in zip(ds, rs, strict=True)
    ):
        step = [_draw_step(rng, requests[dp], done[dp]) for dp in range(num_dp)]
        if any(one.parts for one in step):
            steps.append(step)
    return steps


def _draw_step(rng, requests, done):
    size = rng.choice([1, 5, 16])
    mode = {1: ForwardMode.DECODE, 5: ForwardMode.VERIFY, 16: ForwardMode.PREFILL}[size]
    parts = []
    for i, ids in enumerate(requests):
        if done[i] < len(ids) and rng.random() < 0.7:
            end = min(len(ids), done[i] + size)
            parts.append((ids[done[i] : end], done[i], [1 + 50 * i + p for p in range(end)]))
            done[i] = end
    num_rows = sum(len(ids) for ids, _, _ in parts)
    return Step(mode, parts, sorted(rng.sample(range(num_rows), rng.randint(0, num_rows))))


def run_alone(serving, steps, dp):
    """What data-parallel rank `dp` of the steps sees if it is all there is, and its KV at the end."""
    runner, capturer = serving.load()
    seen = []
    for step in steps:
        if step[dp].parts:
            output = runner.run(step[dp].batch())
            captured = [tensor[: step[dp].num_rows].clone() for tensor in capturer.device_buffer.tensors()]
            seen.append(Seen(output.logits, output.hidden, captured))
    return seen, runner.kv


def run_rank(serving, ranks, steps):
    """The same of one rank of several; what a follower hands back is nothing."""
    runner, capturer = serving.load(ranks)
    gathering = RankCapture(ranks, runner.model.config, capturer.shape, serving.faults)
    seen = []
    for step in steps:
        rows = tuple(one.num_rows for one in step)
        requests = tuple(len(one.parts) for one in step)
        own = step[ranks.place.dp]
        batch = own.batch(dp_rows=rows, dp_requests=requests)
        if not own.parts:
            runner.model.run_idle(batch)
            if runner.model.placement is not None:
                runner.model.placement.forward_ended()
            continue
        output = runner.run(batch)
        if not ranks.is_leader:
            gathering.send(capturer, output.gathered)
            seen.append(Seen(output.logits, output.hidden, []))
            continue
        gathering.gather(capturer, output.gathered, own.mode)
        captured = capturer.on_forward_end(batch.out_slots)
        captured.copy_to_host()
        seen.append(Seen(output.logits, output.hidden, captured._host_rows))
    return seen, runner.kv
