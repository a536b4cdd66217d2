"""Random windows of the token streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from training.corpus import KINDS
from training.tokenizer import stream_file

MIX: Mapping[str, float] = {"library": 0.42, "tests": 0.46, "prose": 0.12}
"""Shares of the windows of a batch. By size it would be 0.30, 0.61 and 0.08."""


class Windows:
    """Batches of windows drawn from several streams by share; the same draws for the same seed."""

    def __init__(
        self, streams: Sequence[torch.Tensor], shares: Sequence[float], length: int, seed: int
    ) -> None:
        self._streams = streams
        self._shares = shares
        self._length = length
        self._device = streams[0].device
        self._generator = torch.Generator(self._device).manual_seed(seed)

    def draw(self, count: int) -> torch.Tensor:
        """Token ids [count, length] int64 on the streams' device."""
        counts = [round(count * share) for share in self._shares[1:]]
        parts = []
        for stream, n in zip(self._streams, [count - sum(counts), *counts], strict=True):
            high = stream.shape[0] - self._length + 1
            starts = torch.randint(high, (n,), generator=self._generator, device=self._device)
            parts.append(stream[starts[:, None] + torch.arange(self._length, device=self._device)])
        return torch.cat(parts).long()


def read_stream(folder: Path, split: str, kind: str, device: str) -> torch.Tensor:
    """One stream as int16 (ids are small enough) on a device; [tokens]."""
    return torch.from_numpy(np.load(stream_file(folder, split, kind)).astype(np.int16)).to(device)


def training_windows(folder: Path, length: int, seed: int, device: str) -> Windows:
    """Windows over the train split in the proportions of `MIX`."""
    streams = [read_stream(folder, "train", kind, device) for kind in KINDS]
    return Windows(streams, [MIX[kind] for kind in KINDS], length, seed)


def heldout_windows(folder: Path, kind: str, length: int, count: int, device: str) -> torch.Tensor:
    """Up to `count` windows that do not overlap, spread evenly over a held-out stream; [n, length] int64."""
    stream = read_stream(folder, "heldout", kind, device)
    whole = stream[: stream.shape[0] // length * length].view(-1, length)
    if whole.shape[0] > count:
        picks = torch.linspace(0, whole.shape[0] - 1, count).round().long()
        whole = whole[picks.to(whole.device)]
    return whole.long()
