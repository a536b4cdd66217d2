"""A captured sequence of kernels over static buffers, as a CUDA graph is one.

On the CPU a graph is the list of launches of one forward with the very tensors they were given. Replaying
it runs no Python of a layer: what a layer decided at capture (which backend, which configuration) stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moeinspect.runtime.layers.context import Kernel


class BufferPool:
    """The static outputs of all graphs of one model, by name.

    As with a memory pool that CUDA graphs share, graphs overwrite each other's intermediate results: a
    smaller one uses the front of what a larger one was given. Largest graphs are captured first.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.Size, torch.dtype], torch.Tensor] = {}

    def view(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """The static tensor of this name, shaped as `like` [n, ...]."""
        key = (name, like.shape[1:], like.dtype)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape[0] < like.shape[0]:
            buffer = torch.zeros(like.shape, dtype=like.dtype)
            self._buffers[key] = buffer
        return buffer[: like.shape[0]]


@dataclass(frozen=True, slots=True)
class _Node:
    kernel: Kernel
    args: tuple[object, ...]
    output: torch.Tensor


class Graph:
    """One captured forward; `launch` notes its kernels while it is captured."""

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._nodes: list[_Node] = []

    def __len__(self) -> int:
        return len(self._nodes)

    def launch(self, name: str, kernel: Kernel, *args: object) -> torch.Tensor:
        """Notes the kernel with its arguments; returns its static output."""
        computed = kernel(*args)
        output = self._pool.view(name, computed)
        output.copy_(computed)
        self._nodes.append(_Node(kernel, args, output))
        return output

    def replay(self) -> None:
        """Runs the kernels again, in order, on whatever the static inputs hold now."""
        for node in self._nodes:
            node.output.copy_(node.kernel(*node.args))
