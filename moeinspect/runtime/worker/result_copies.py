"""Brings the results of a step to the host, behind the step's forwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moeinspect.runtime.device.stream import Device, StreamEvent
from moeinspect.runtime.scheduler.batch import StepResult


@dataclass(slots=True)
class _DelayedCopy:
    """A device-to-host copy that waits for the next forward (fault `buffer-reuse`)."""

    result: StepResult
    enqueue: Callable[[], None]


class ResultCopies:
    """Enqueues the device-to-host copy of each step on the copy stream.

    With `after_next_step` a copy waits for the next step's forwards, so that what was not cloned is surely
    overwritten (fault `buffer-reuse`).
    """

    def __init__(self, device: Device, *, after_next_step: bool) -> None:
        self._device = device
        self._after_next_step = after_next_step
        self._waiting: _DelayedCopy | None = None

    def launch(self, result: StepResult) -> None:
        """Called when the step's forwards are enqueued; sets its `tokens_done` and `copy_done`."""
        computed = self._device.compute.record()
        if self._waiting is not None:
            self._release(computed)

        def enqueue(after: StreamEvent = computed) -> None:
            copy = self._device.copy
            copy.wait(after)
            copy.submit(lambda: _copy_tokens(result), kind="copy-tokens", step=result.batch.step)
            result.tokens_done = copy.record()
            copy.submit(lambda: _copy_captures(result), kind="copy", step=result.batch.step)
            result.copy_done = copy.record()

        if self._after_next_step:
            self._waiting = _DelayedCopy(result, enqueue)
        else:
            enqueue()

    def before_reading(self, result: StepResult) -> None:
        """The host is about to wait for `result`: no forward follows that its copy could wait for."""
        if self._waiting is not None and self._waiting.result is result:
            self._release()

    def _release(self, after: StreamEvent | None = None) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            if after is not None:
                self._device.copy.wait(after)
            waiting.enqueue()


def _copy_tokens(result: StepResult) -> None:
    if result.device_tokens is None or result.device_num_tokens is None:
        raise RuntimeError("the copy ran before the forward")
    result.tokens = result.device_tokens.numpy().copy()
    result.num_tokens = result.device_num_tokens.numpy().copy()
    if result.device_hidden is not None:
        result.hidden = result.device_hidden.float().numpy().copy()


def _copy_captures(result: StepResult) -> None:
    for capture in result.captures:
        capture.copy_to_host()
