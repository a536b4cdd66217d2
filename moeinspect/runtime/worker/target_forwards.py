"""Forwards of the target: each ends by taking its captured rows out of the shared buffer."""

from __future__ import annotations

import torch

from moeinspect.runtime.capture.capturer import TopkCaptureOutput, get_global_experts_capturer
from moeinspect.runtime.forward_batch import ForwardBatch, ForwardOutput
from moeinspect.runtime.parallel.capture import RankCapture
from moeinspect.runtime.worker.forward_end import end_of_forward
from moeinspect.runtime.worker.forward_runner import ForwardRunner


class TargetForwards:
    """Runs the target's forwards on the compute stream.

    With `delayed_copy` (overlap) the captured rows join the step's result and travel on the copy stream;
    without it each forward stores its own rows before it returns, as upstream does. Without `clone` they
    are left in the buffer that the next forward overwrites (fault `buffer-reuse`). `gathering` brings the
    rows of several ranks together first; None in a process that has the whole model.
    """

    def __init__(
        self,
        forwards: ForwardRunner,
        *,
        delayed_copy: bool,
        clone: bool,
        gathering: RankCapture | None = None,
    ) -> None:
        self._forwards = forwards
        self._delayed_copy = delayed_copy
        self._clone = clone
        self._gathering = gathering

    def run(
        self, inputs: ForwardBatch, captures: list[TopkCaptureOutput]
    ) -> tuple[ForwardOutput, TopkCaptureOutput]:
        """One forward, and its captured rows, which join `captures` if they travel with a result."""
        output = self._forwards.run(inputs)
        capturer = get_global_experts_capturer()
        if capturer is None:
            raise RuntimeError("a target's process has a capturer")
        if self._gathering is not None and output.gathered is not None:
            self._gathering.gather(capturer, output.gathered, inputs.mode)
        captured = end_of_forward(
            capturer,
            output.slots,
            captures,
            delayed=self._delayed_copy,
            clone=self._clone,
            static=output.static,
        )
        return output, captured

    def move_kv(self, from_slots: torch.Tensor, to_slots: torch.Tensor) -> None:
        """Copies keys and values of slots [n] to other slots [n], on every rank that has a share of them."""
        self._forwards.move_kv(from_slots, to_slots)
