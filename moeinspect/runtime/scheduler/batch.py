"""What one step is asked to do, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from moeinspect.runtime.capture.capturer import TopkCaptureOutput
from moeinspect.runtime.device.stream import StreamEvent
from moeinspect.runtime.forward_batch import ForwardMode
from moeinspect.runtime.scheduler.request import Request


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of what one request has to prefill: positions [start, start + extend_len)."""

    request: Request
    start: int
    extend_len: int

    @property
    def completes_prefill(self) -> bool:
        """Whether the last token to prefill is in it."""
        return self.start + self.extend_len == self.request.fill_len

    @property
    def samples(self) -> bool:
        """Whether an output token is sampled after it."""
        return self.completes_prefill and self.request.samples


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """One step: a prefill of `chunks`, or a decode (or verify) of `requests` by one step each.

    `num_drafts` is the number of tokens that a verify step proposes for each request.
    """

    step: int
    mode: ForwardMode
    requests: tuple[Request, ...]
    chunks: tuple[Chunk, ...] = ()
    num_drafts: int = 0

    @property
    def sampling_requests(self) -> tuple[Request, ...]:
        """The requests that get tokens from this step, in batch order."""
        if self.mode is ForwardMode.PREFILL:
            return tuple(chunk.request for chunk in self.chunks if chunk.samples)
        return self.requests


@dataclass(slots=True)
class StepResult:
    """Results of a launched step; tokens are valid once `tokens_done` is, everything once `copy_done` is.

    `tokens` [n, width] are the tokens sampled for the batch's `sampling_requests`, of which the first
    `num_tokens` [n] of each count; width is 1 without a draft. `hidden` [n, width * H] are the target's
    hidden states of completed prompts' last tokens, where a draft head reads them. `captures` are the
    delayed copies of the step's routed experts, in the order in which its forwards ran; empty where they
    were stored at once.
    """

    batch: ScheduledBatch
    device_tokens: torch.Tensor | None = None
    device_num_tokens: torch.Tensor | None = None
    tokens: NDArray[np.int64] | None = None
    num_tokens: NDArray[np.int64] | None = None
    device_hidden: torch.Tensor | None = None
    hidden: NDArray[np.float32] | None = None
    captures: list[TopkCaptureOutput] = field(default_factory=list)
    tokens_done: StreamEvent | None = None
    copy_done: StreamEvent | None = None

    def outputs(self) -> list[list[int]]:
        """The tokens of each sampling request, on the host."""
        if self.tokens is None or self.num_tokens is None:
            raise RuntimeError("results were read before copy_done")
        return [row[:count].tolist() for row, count in zip(self.tokens, self.num_tokens, strict=True)]

    def finalize(self) -> None:
        """Stores the step's captured rows in the host buffer."""
        for capture in self.captures:
            capture.finalize()
