"""What the layers of one forward share, and how they launch their kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from moeinspect.runtime.forward_batch import ForwardBatch
from moeinspect.runtime.layers.attention_plan import AttentionPlan
from moeinspect.runtime.memory.kv_cache import KVCache
from moeinspect.runtime.parallel.rows import GatheredRows

Kernel = Callable[..., torch.Tensor]
"""One operation of a layer: from tensors, and perhaps the context, to a new tensor."""


class Launch(Protocol):
    """Runs a kernel now; a graph that is being captured also notes it, with the very arguments it got.

    What decides in Python between two launches is therefore decided once, at capture. Kernels launched
    under one `name` share one static output buffer, so the output is gone when the name is launched again.
    """

    def __call__(self, name: str, kernel: Kernel, *args: object) -> torch.Tensor:
        """The kernel's output."""


def launch_now(name: str, kernel: Kernel, *args: object) -> torch.Tensor:
    """The eager launch."""
    return kernel(*args)


@dataclass(slots=True)
class ForwardContext:
    """What all layers of one forward share; rows are padded to whole tiles.

    `cos` and `sin` [padded, 1, head_dim] are read by launches, the other fields inside kernels, so that a
    replayed graph sees those of the batch it is replayed for. `input_ids` [padded] are the rows' tokens, for
    routers that go by them: in a graph its static buffer. `num_rows` rows reach the routers: the real ones.
    `gathered` says how the rows of all ranks stand in a forward over several; None while a graph is captured.
    `plan` is None in the ordinary, not bit-exact mode. `input_hidden` [padded, H] is what a draft head reads
    beside the tokens; `kept_hidden` collects hidden states [padded, H] that one asked for.
    """

    kv: KVCache
    cos: torch.Tensor
    sin: torch.Tensor
    input_ids: torch.Tensor
    batch: ForwardBatch
    plan: AttentionPlan | None
    num_rows: int
    launch: Launch = launch_now
    gathered: GatheredRows | None = None
    input_hidden: torch.Tensor | None = None
    kept_hidden: list[torch.Tensor] = field(default_factory=list)
