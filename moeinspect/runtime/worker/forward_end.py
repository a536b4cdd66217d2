"""The end of a captured forward."""

from __future__ import annotations

import torch

from moeinspect.runtime.capture.capturer import RoutedExpertsCapturer, TopkCaptureOutput
from moeinspect.runtime.capture.static_rows import LateHostBuffer, StaticRows


def end_of_forward(
    capturer: RoutedExpertsCapturer,
    slots: torch.Tensor,
    captures: list[TopkCaptureOutput],
    *,
    delayed: bool,
    clone: bool = True,
    static: bool = False,
) -> TopkCaptureOutput:
    """What every captured forward does last: takes its rows out of the shared device buffer.

    With `delayed` they join `captures` and are stored by the step's result handler, else at once. `static`
    leaves them in the buffer until their request ends (fault `graph-static-rows`).
    """
    if static and isinstance(capturer.host_buffer, LateHostBuffer):
        output: TopkCaptureOutput = StaticRows(capturer.host_buffer, slots)
    else:
        output = capturer.on_forward_end(slots, clone=clone)
    if delayed:
        captures.append(output)
    else:
        output.copy_to_host()
        output.finalize()
    return output
